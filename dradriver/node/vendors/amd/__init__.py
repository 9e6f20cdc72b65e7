"""AMD's GPUs, read from /sys alone.

amd_gpus            this node's own GPUs of AMD, read at an interval
amd_reading         one reading of a machine with AMD's GPUs
kfd                 the description of GPUs by amdgpu's compute part (KFD)
amd_device_nodes    the numbers of the GPUs' device nodes
amd_specification   the CDI specification that brings the GPUs into containers
amd_processes       which processes use the GPUs
amd_error_counters  errors that the GPUs count
amd_reports         amdgpu's reports about the GPUs in the kernel's log
simulated_amd       the container edits of a simulated GPU
"""
