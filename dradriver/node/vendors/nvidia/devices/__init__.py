"""NVIDIA's kinds of parts, and changing NVIDIA's hardware.

assemble      which kinds a node has, and what changes its hardware
mig_devices_made  MIG devices
mig_packing   which MIG instance a claim asks for, and where on a GPU it goes
capabilities  the device nodes that open a MIG instance to a container
share         shares, by time-slicing and by MPS
nvml_control  this node's own GPUs
control_session  NVML with all that changing MIG needs of it
simulated_control  hardware that can be changed, in a file
"""
