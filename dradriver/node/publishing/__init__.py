"""The node's ResourceSlices.

node_objects       this node and its slices, as they are in the API
publisher          writes the slices, and keeps them as they should be
feature_probe      asks the API server which fields of slices it keeps
notices            what people are told of what keeps GPUs from being published
pool               which writes make a pool hold the wanted slices
other_drivers      whether something else hands out the same GPUs
mode_transition    the mode in which each GPU is published, and how it changes with the policies file
remembered_modes   the modes of GPUs in a file, for the next agent
allocated_devices  which of the node's devices are allocated to claims, by the API server
"""
