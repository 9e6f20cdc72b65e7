"""What NVIDIA's driver says of a machine, and how its GPUs come into containers. Only ``binding`` imports nvidia-ml-py.

nvidia_gpus  this node's own GPUs, read again and again
nvidia_reading  one reading of them, from what NVML and /sys say
driver_release  when the driver must be closed, so that it can be replaced
device_nodes  the driver's device nodes in the agent's own /dev
nvml        what may be asked of NVML, with types
nvml_query  asking what may fail
binding     its answers, by nvidia-ml-py
nvml_calls  calls of its functions, whose answers are believed only where they can be true
library_sessions  what holds of it while any session is open
library     which library that is, and whether it was replaced
nvml_session  keeping it open while the driver lives
gpu_facts   what NVML says of each GPU
mig_state   what it says of MIG
mig_profiles  which instances a GPU can have, by nvidia-ml-py
condition   what it says of a GPU's condition
nvlink_matrix  links between GPUs, from what each says of its own
nvidia_processes  which processes are on a GPU
work        whether GPUs work
base_specification  the base specification, which makes a whole GPU usable in a container
cdi_specifications  CDI specifications that others made
ctk         NVIDIA's tool that makes them
own_toolkit  the image's, for hosts that have none that works
"""
