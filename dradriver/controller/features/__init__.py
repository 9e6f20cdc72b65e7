"""Optional features of the controller. Nothing in the folders below imports them; they register themselves.

registry            lists the features and what each registers: read this first
recorders           writers of all Events
reservations        reserves GPUs for a workload that waits long; moves and ends reservations
reserved_workloads  whether a workload with a reservation still waits
namespaces          labels of namespaces, while tenants are chosen by them
agent_admission     whether Pod Security forbids the node agents in the driver's namespace
idle_pods           warns and ends pods with idle GPUs
idle_step           the next step for a workload with idle GPUs
idle_workloads      workloads with idle pods
"""
