"""What is one vendor's in the agent: how its GPUs are read, what of them can be handed out, what their driver reports.

A room knows no other room.

nvidia  by NVML, with MIG and shares
"""
