"""Claims on this node: prepared for a pod, remembered, released.

prepare        preparing and unpreparing claims
claim_lock     the lock that a call for a claim holds
claim_reader   the claims as the API server has them
prepare_plan   from an allocated claim to what is prepared
container_env  what a container is told of its devices
metadata       device metadata, a file that it can read
nccl_settings  what NCCL is told
near_nics      the network cards near a container's GPUs
missing_info_events  tells pods what their containers are not told
host_server    the server below a virtual machine
status         what a claim's status says of its devices
prepared_gpu_info  whose a prepared GPU is, in names
gpu_processes  processes that are on GPUs which change hands
missing_devices  which MIG instances a claim has lost
claim_hardware  what has to be made on the hardware for a claim
ledgers        all that is kept on disk of claims
checkpoint     what the kubelet was answered
mounted_files  the files that containers of claims read
cdi            what the container runtime reads of it
reconcile      gives back what nobody uses
rebuild        claims that a newer agent prepared
"""
