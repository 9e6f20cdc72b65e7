"""NICs that other drivers allocate.

nic_inventory  all NICs, and the claims that use them
nic_counts     how many free NICs each node has for a request
nic_distances  the distance of NICs from the GPUs of their node
nic_devices    the data that a ResourceSlice has of a NIC
"""
