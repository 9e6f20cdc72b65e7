"""The cluster controller: chooses GPUs for waiting pods and writes the decisions.

main        the process: reads options, leads, runs the controller
controller  starts the reflectors, the worker and the features
audit       compares the cluster cache with the reflectors' stores
features    optional features: caps, reservations, idle pods, usage
loop        processes changes, serves waiting workloads in their order, runs periodic work
owners      owners of pods (Job, JobSet): reads, suspends and resumes them; evicts pods
writing     writes to the API server, and handles the answers
steps       decides what a pod or a gang needs next; pure functions
placing     chooses GPUs, nodes and NICs, workloads to preempt, and sets to reserve; no I/O
reading     reads objects only when a waiting pod names them
metrics     metrics of the controller
"""
