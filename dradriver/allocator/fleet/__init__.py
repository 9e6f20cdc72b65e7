"""Which nodes of a cluster, for one pod and for gangs.

node_group   nodes of one kind as arrays
machine_kinds  what is costly to know of a kind, for another process to compute
candidates   the nodes that a request may be placed on, and what it could use of them
node_order   in which order nodes are filled
network_sites  where nodes stand in the network
fleet_refusals  why no node fits, and the nearest thing that does
part_nodes   on which node, and which of its GPUs, a part goes
part_costs   what several parts cost at least, on many nodes at once
part_sets    the same for a pod of several parts
part_ranking  nodes ranked for a request of parts, and why none has a place
freeing      whom to move so that a node has a free set
fleet        all of it: the nodes of a cluster, ranked for one pod
gang_nodes   the nodes that a gang's pods may go to, with CPU and memory, and how many pods they hold
gang_domains which part of the network a gang goes to, and the same positions there
role_plan    how many pods of one role on which nodes of it: few parts, equal ones
gang_effort  how much a search may cost
domain_capacity  whether a part of the network can hold a gang at all
gang_roles_search  how roles are shared over nodes, where every way is looked at
gang_search  plans for all roles, level by level
gang_refusals  why a gang has no place
gang_placement  places for gangs, all or nothing
"""
