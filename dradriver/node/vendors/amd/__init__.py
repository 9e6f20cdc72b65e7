"""AMD's GPUs, from /sys alone.

gpus       this node's own, read again and again
reading    one reading of them
kfd        what amdgpu's compute part says
drm        the numbers of their device nodes
specification  what brings them into containers
processes  which processes use them
ras        errors that they count
reports    what amdgpu says of them in the kernel's log
simulated  what a container is given of a simulated one
"""
