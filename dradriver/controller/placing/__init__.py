"""Which GPUs, nodes and NICs a workload gets. No I/O.

plan                   the places of a workload, and whether they are still valid; the others ask it
decide                 the placement of one pod
chosen_gpus            the GPUs of a choice by the requests of a claim
ranking                the best sets on the best nodes; the reason if there are none
node_limit             what a feature has to say of the choice of a node
node_limits            registers the limits of features, and says which requests use these
channel_limit          the limit of channels of multi-node NVLink
claim_limit            the limit of allocated claims of other drivers
nic_limit              the limits of NICs for a single pod
spot_limit             the limit of spot nodes
gang_plan              the placement of all pods of a gang
gang_terms             what the pods of a gang ask for as a whole, and their order
late_pod               what to search for a pod that comes to a gang which runs
gang_placements        what a gang's plan means for each of its pods
gang_roles             what the allocator is asked for a gang
member_rules           what the pods of a gang require of pods next to them, and what nodes have of it
gang_rules             plans for gangs whose pods have such rules about zones, or want to be together
gang_cells             how the pods of a gang are shared over zones so that they keep their rules
gang_nics              NICs for the pods of a gang
nic_choice             NICs of other drivers for chosen GPUs
nic_refusals           why there is no place although GPUs are free: NICs are missing
nic_node               the NICs of one node, and bounds of the search
nic_places             which nodes have such GPUs and NICs
running_workloads      workloads that preemption can end
preemption_plan        which workloads to preempt
preemption_on_node     the search for a single pod: workloads of one node
preemption_in_network  the search for a gang: workloads of one part of the network
preemption_search      what both searches share: candidates and the simulation
preemption_cost        what a preemption costs
reservable             which sets can be reserved for a waiting workload, and until when they are in use
"""
