"""NVIDIA's kinds of parts, and changing NVIDIA's hardware.

mig           MIG devices
mig_packing   which MIG instance a claim asks for, and where on a GPU it goes
capabilities  the device nodes that open a MIG instance to a container
share         shares, by time-slicing and by MPS
records       what the ledgers keep of MIG instances and MPS shares
nvml_control  this node's own GPUs
control_session  NVML with all that changing MIG needs of it
"""
