"""The code for each vendor: how its GPUs are read, how they are handed out, what their driver reports.

The code of one vendor does not import the code of another.

vendor_of_node  the vendor whose GPUs a node publishes
nvidia   GPUs read by NVML, with MIG instances and shares
amd      GPUs read from /sys, whole GPUs only
ascend   only simulated NPUs
"""
