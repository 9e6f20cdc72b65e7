"""What is one vendor's in the agent: how its GPUs are read, what of them can be handed out, what their driver reports.

A room knows no other room.

vendor_of_node  whose GPUs a node publishes
nvidia   by NVML, with MIG and shares
amd      from /sys, whole GPUs
ascend   simulated NPUs alone
"""
