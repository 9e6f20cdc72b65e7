"""Kinds of devices: what each offers, and what has to be made on the hardware before a container has it.

kinds         what a kind of device offers
whole         whole GPUs: nothing has to be made
mig           MIG devices
packing       where on a GPU MIG instances go
capabilities  the device nodes that open a MIG instance to a container
share         shares, by time-slicing and by MPS
made          an entry of the ledger of what was changed on hardware
workshop      makes and undoes, in the one thread that changes hardware
assemble      which kinds a node has, and what changes its hardware
control       the calls that change hardware
nvml          this node's own GPUs
session       NVML with all that changing MIG needs of it
simulated     hardware that can be changed, in a file
"""
