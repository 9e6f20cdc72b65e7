"""Claims on this node: prepared for a pod, remembered, released.

prepare              the kubelet's calls: prepares and unprepares a claim
claim_lock           the lock that a call for a claim holds
claim_reader         reads a claim from the API server
allocated_claim      what an allocated claim says: requests, configuration, choice and ring
prepare_plan         from an allocated claim to what has to be prepared
container_env        the variables and files that a container gets
metadata             the device metadata file of a request
nccl_settings        the NCCL settings of a container
near_nics            the network cards near a container's GPUs, for NCCL
missing_info_events  Events on pods about information that their containers do not get
host_server          the server below a virtual machine
status               what a claim's status says of its devices
prepared_gpu_info    metric series that name the pod of a prepared GPU
gpu_processes        refuses GPUs on which processes still run
missing_devices      which GPUs and MIG instances of a prepared claim are missing
claim_hardware       makes and undoes the hardware of one claim
ledgers              all that is kept on disk of claims, and what a crash leaves of it
checkpoint           the prepared claims on disk: what the kubelet was answered
mounted_files        the files on the host that containers of claims read
cdi                  the CDI spec of a claim, for the container runtime
reconcile            releases prepared claims that no pod uses
rebuild              rebuilds the entries of claims that a newer agent prepared
"""
