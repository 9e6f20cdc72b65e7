"""NICs that other drivers hand out.

nic_inventory  all of them, and the claims that use them
nic_counts   how many free NICs nodes have for a request
nic_distances  the distance of NICs from the GPUs of their node
nic_devices  what a slice says of a NIC
"""
