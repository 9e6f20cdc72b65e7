"""NVIDIA's kinds of parts, and changing NVIDIA's hardware.

mig           MIG devices
mig_packing   where on a GPU MIG instances go
capabilities  the device nodes that open a MIG instance to a container
share         shares, by time-slicing and by MPS
nvml_control  this node's own GPUs
control_session  NVML with all that changing MIG needs of it
"""
