"""AMD's GPUs, from /sys alone.

amd_gpus   this node's own, read again and again
amd_reading  one reading of them
kfd        what amdgpu's compute part says
amd_device_nodes  the numbers of their device nodes
amd_specification  what brings them into containers
amd_processes  which processes use them
ras        errors that they count
reports    what amdgpu says of them in the kernel's log
simulated_amd  what a container is given of a simulated one
"""
