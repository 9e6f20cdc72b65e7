"""AMD's GPUs, from /sys alone.

amd_gpus            this node's own GPUs of AMD, read again and again
amd_reading         one reading of a machine with AMD's GPUs
kfd                 what amdgpu's compute part (KFD) says of GPUs
amd_device_nodes    the numbers of the GPUs' device nodes
amd_specification   the CDI specification that brings the GPUs into containers
amd_processes       which processes use the GPUs
amd_error_counters  errors that the GPUs count
amd_reports         what amdgpu reports of the GPUs in the kernel's log
simulated_amd       what a container is given of a simulated GPU
"""
