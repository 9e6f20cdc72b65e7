"""NVIDIA's kinds of fractions, and the code that changes NVIDIA's hardware.

nvidia_hardware       the hardware of a node, real or simulated, and its device manager with NVIDIA's kinds
mig_devices_made      the kind of MIG devices: made and undone for claims
mig_packing           which MIG instance a claim requests, and its placement on a GPU
capabilities          the device nodes that a container needs to use a MIG instance
mps_and_time_slicing  the kinds of shares, by time-slicing and by MPS
nvml_control          changes this node's own GPUs, by NVML and the MPS process
control_session       the NVML session in which MIG is changed, with handles and records
simulated_control     changes simulated GPUs, in a file
"""
