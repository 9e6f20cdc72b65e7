"""Reads a machine with NVIDIA's GPUs, and brings the GPUs into containers.

Only ``binding`` imports nvidia-ml-py.

nvidia_gpus         this node's own GPUs, read at an interval
nvidia_reading      one reading of a machine with NVIDIA's GPUs, from NVML and /sys
driver_release      when the driver must be closed, so that it can be replaced
driver_root         translates paths below the root of the driver's file system to paths on the host
device_nodes        makes the driver's device nodes in the agent's own /dev
nvml_interface      the interface of NVML's queries, with types
failed_queries      queries to NVML that may fail: facts, and last good answers
binding             implements nvml_interface by nvidia-ml-py (pynvml)
nvml_calls          calls functions of pynvml, and refuses impossible answers
library_sessions    sessions of NVML's library, with handles and answers kept while any is open
library             which file NVML's library is, and whether it was replaced
nvml_session        one NVML session, open while the driver lives
gpu_facts           the facts of each GPU by NVML
mig_state           a GPU's MIG mode, profiles and devices by NVML
mig_profiles        which MIG instances a GPU can have, by pynvml
condition           the faults of a GPU by NVML
nvlink_matrix       NVLinks between GPUs, from each GPU's own links
nvidia_processes    which processes are on a GPU
nvidia_work         whether GPUs work
base_specification  the base specification, which makes a whole GPU usable in a container
cdi_specifications  CDI specifications of other programs
ctk                 runs nvidia-ctk, NVIDIA's tool that makes CDI specifications
own_toolkit         the image's container toolkit, for hosts without a working one
"""
