"""Claims on this node: made ready for a pod, remembered, given back.

prepare     preparing and unpreparing claims
allocation  from an allocated claim to what is prepared
container_env  what a container is told of its devices
metadata    device metadata, a file that it can read
nccl        what NCCL is told
host_server  the server below a virtual machine
status      what a claim's status says of its devices
info        whose a prepared GPU is, in names
gpu_processes  processes that are on GPUs which change hands
mounted     the files of a claim
making      what has to be made on the hardware for that
ledgers     all that is kept on disk of claims
checkpoint  what the kubelet was answered
cdi         the same, as the container runtime reads it
reconcile   gives back what nobody uses
rebuild     claims that a newer agent prepared
lock        locks that hold between two instances of the agent
"""
