"""NVIDIA's GPUs. Nothing outside this room speaks NVML.

discovery  what the driver says of them, and how they come into containers
devices    kinds of parts, and what changes hardware
xids       what XIDs, the driver's own reports of errors, mean
"""
