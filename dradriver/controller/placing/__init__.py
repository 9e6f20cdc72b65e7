"""Chooses the GPUs, nodes and NICs of a workload. No I/O.

plan                   the places of a workload, and whether they are still valid; other folders call it
decide                 the placement of one pod
chosen_gpus            the GPUs of a choice by the requests of a claim
ranking                the best sets on the best nodes; the reason if there are none
node_limit             the interface by which a feature limits the choice of a node
node_limits            registers the limits of features, and says which requests use them
channel_limit          the limit of channels of multi-node NVLink
claim_limit            the limit of allocated claims of other drivers
nic_limit              the limits of NICs for a single pod
spot_limit             the limit of spot nodes
gang_plan              the placement of all pods of a gang
gang_terms             the request of a gang as a whole, and the order of its pods
late_pod               the search for a pod that joins a running gang
gang_placements        turns a gang's plan into one placement for each pod
gang_roles             describes a gang for the allocator
member_rules           the rules of a gang's pods about neighbouring pods, and quotas of nodes
gang_rules             plans for gangs with rules about zones or affinity
gang_cells             distributes the pods of a gang over zones so that they keep their rules
gang_nics              NICs for the pods of a gang
nic_choice             NICs of other drivers for chosen GPUs
nic_refusals           why there is no place although GPUs are free: NICs are missing
nic_node               the NICs of one node, and bounds of the search
nic_places             nodes with GPUs and NICs for a pod
running_workloads      workloads that preemption can end
preemption_plan        plans which workloads to preempt
preemption_on_node     the search for a single pod: workloads of one node
preemption_in_network  the search for a gang: workloads of one section of the network
preemption_search      the common parts of both searches: candidates and the simulation
preemption_cost        the cost of a preemption
reservable             sets that can be reserved for a waiting workload, and until when they are in use
"""
