"""NVIDIA's GPUs. Nothing outside this room speaks NVML.

discovery  what the driver says of them, and how they come into containers
devices    kinds of parts, and what changes hardware
simulated_nvidia  what a container is given of a simulated one
xid_reports  XIDs, the driver's own reports of errors, from the kernel's log
sxid_reports  SXids, those of its NVSwitches
xids       what each of them means
"""
