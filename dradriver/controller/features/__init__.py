"""Features that a cluster may do without. Nothing in the folders below imports them; they register themselves.

registry        which features there are, and what each registers: read this first
recorders       writers of all Events
reservations    reserves GPUs for a workload that waits long; moves and ends reservations
reserved_workloads  whether a workload with a reservation waits still
namespaces      labels of namespaces, while tenants are chosen by them
agent_admission  whether Pod Security forbids the node agents in the driver's namespace
idle_pods       pods whose GPUs do nothing: notes, warns, ends them
idle_step       the next step for pods whose GPUs do nothing
idle_workloads  workloads with idle pods
"""
