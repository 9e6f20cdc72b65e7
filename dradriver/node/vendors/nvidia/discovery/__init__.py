"""What NVIDIA's driver says of a machine, and how its GPUs come into containers. Only ``binding`` imports nvidia-ml-py.

nvidia_gpus         this node's own GPUs, read again and again
nvidia_reading      one reading of a machine with NVIDIA's GPUs, from NVML and /sys
driver_release      when the driver must be closed, so that it can be replaced
driver_root         paths below the root of the driver's file system, and as the host's own
device_nodes        makes the driver's device nodes in the agent's own /dev
nvml_interface      the interface: what may be asked of NVML, with types
failed_queries      asks NVML what may fail: facts, and last good answers
binding             answers the questions of nvml_interface by nvidia-ml-py (pynvml)
nvml_calls          calls of functions of pynvml, whose answers are believed only where they can be true
library_sessions    sessions of NVML's library, with handles and answers kept while any is open
library             which file NVML's library is, and whether it was replaced
nvml_session        one NVML session, open while the driver lives
gpu_facts           what NVML says of each GPU
mig_state           what NVML says of a GPU's MIG mode, profiles and devices
mig_profiles        which MIG instances a GPU can have, by pynvml
condition           what NVML says of a GPU's condition
nvlink_matrix       NVLinks between GPUs, from what each says of its own
nvidia_processes    which processes are on a GPU
nvidia_work         whether GPUs work
base_specification  the base specification, which makes a whole GPU usable in a container
cdi_specifications  CDI specifications that others made
ctk                 runs nvidia-ctk, NVIDIA's tool that makes CDI specifications
own_toolkit         the image's own container toolkit, for hosts that have none that works
"""
