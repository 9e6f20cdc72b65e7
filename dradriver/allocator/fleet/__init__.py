"""Which nodes of a cluster, for one pod and for gangs.

network_sites  where nodes stand in the network, by number: which domain of a level has them
node_group   nodes of one kind as arrays: what is free on each, its row and its site
machine_kinds  what is costly to know of a kind, computed by another process
candidates   the nodes that a request for whole GPUs may be placed on, and what it could use of them
node_order   in which order nodes are filled
fleet_refusals  why no node fits a request for whole GPUs, and the nearest thing that does
part_nodes   the place of one part: on which node, and on which of its GPUs
part_costs   what several parts cost at least, on many nodes at once
part_sets    the places of several parts of one pod
part_ranking  nodes ranked for a request for parts, and why none has a place
freeing      which workloads to move so that a node has a free set
fleet        all of it: the nodes of a cluster, ranked for one pod
gang_nodes   the nodes that a gang's pods may go to, with CPU and memory, and how many pods they hold
gang_taken   what the placed members of a gang use of their nodes
gang_rails   the same positions on all nodes of a gang
gang_domains which network domain of a level a gang goes to
role_plan    how many pods of one role on which nodes of a domain: few parts, equal ones
gang_effort  how much work a search for a gang may cost
domain_capacity  how many pods of a gang network domains hold, by sums alone; the largest gang that has a place
gang_roles_search  how the roles of a gang are shared over nodes, where every way is looked at
gang_search  plans for all roles, level by level
gang_refusals  why a gang has no place
gang_choice  the places of a gang's pods by the plans of its roles, and how near each other they are
gang_placement  all of it: a place for every pod of a gang, or none
"""
