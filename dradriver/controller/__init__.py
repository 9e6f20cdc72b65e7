"""The cluster controller: chooses GPUs for waiting pods and writes the decisions.

main        the process: reads options, leads, runs the controller
controller  starts the reflectors, the worker and the features
audit       compares the cluster cache with what the reflectors show
features    what a cluster may do without: caps, reservations, idle pods, usage
loop     sees what changed, looks at waiting workloads in their order, runs periodic work
owners   objects that make pods (Job, JobSet): reads, suspends and resumes them; evicts pods
writing  writes to the API server, and what follows from each answer
steps    what a pod or a gang needs next; pure functions
placing  which GPUs, nodes and NICs; whom to preempt; what to reserve; no I/O
reading  objects that are read only when a waiting pod names them
metrics  metrics of the controller
"""
