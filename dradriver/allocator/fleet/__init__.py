"""The choice of nodes in a cluster, for one pod and for gangs. The controller and the CLI call ``fleet``.

network_sites  the locations of nodes in the network, by number, and the network domains that contain them
node_group   the nodes of one kind as arrays: free GPUs, the caller's row and the location of each node
machine_kinds  the costly figures of a kind of machine, computed by another process
candidates   the nodes that a request for whole GPUs may be placed on, and the GPUs that it can use there
node_order   the order in which nodes are filled
fleet_refusals  why no node fits a request for whole GPUs, and the nearest thing that is possible
part_nodes   the place of a single fraction: the node and the GPU
part_costs   the least cost of several fractions of one pod, on many nodes at once
part_sets    the places of several fractions of one pod
part_ranking  the ranking of nodes for a request for fractions, and why no node has a place
freeing      which workloads to move so that a node gets a free set
fleet        the ranking of a cluster's nodes for one pod, made with all the modules above
gang_nodes   the nodes that a gang's pods may be placed on, with CPU and memory, and how many pods each node holds
gang_taken   what the placed members of a gang use of their nodes
gang_rails   the same GPU positions on all nodes of a gang
gang_domains the choice of the network domain of a level for a gang
role_plan    how the pods of one role share the nodes of a domain: few and equal groups
gang_effort  how much work a search for a gang may cost
domain_capacity  how many pods of a gang each network domain holds, by sums alone; the largest gang with a place
gang_roles_search  an exact search for how the roles of a gang share nodes
gang_search  the search for plans for all roles, level by level
gang_refusals  why a gang has no place
gang_choice  the places of a gang's pods from the plans of its roles, and how near these places are
gang_placement  a place for every pod of a gang, or for no pod, made with all the modules above
"""
