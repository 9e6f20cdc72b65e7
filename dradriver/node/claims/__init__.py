"""Claims on this node: prepared for a pod, remembered, released.

prepare              the kubelet's calls: prepares and unprepares a claim
claim_lock           the lock that excludes a second call for the same claim
claim_reader         reads a claim from the API server
allocated_claim      reads an allocated claim: requests, configuration, choice and order of GPUs
prepare_plan         from an allocated claim to the plan to prepare it
container_env        the variables and files that a container gets
metadata             the device metadata file of a request
nccl_settings        the NCCL settings of a container
near_nics            the network cards near a container's GPUs, for NCCL
missing_info_events  Events on pods about information that their containers do not get
host_server          the physical server below a virtual machine
status               writes the entries of a claim's devices into its status
prepared_gpu_info    metric series that name the pod of a prepared GPU
gpu_processes        refuses GPUs on which processes still run
missing_devices      which GPUs and MIG instances of a prepared claim are missing
claim_hardware       makes and undoes the hardware changes of one claim
ledgers              all files about claims on disk, and their repair after a crash
checkpoint           the prepared claims on disk, with the answers that the kubelet got
mounted_files        the files on the host that containers of claims read
cdi                  the CDI spec of a claim, for the container runtime
reconcile            releases prepared claims that no pod uses
rebuild              rebuilds the entries of claims that a newer agent prepared
"""
