"""Publishes the node's GPUs as ResourceSlices.

node_objects       watches this node and its slices in the API
publisher          writes the slices, and corrects them
feature_probe      asks the API server which fields of slices it keeps
notices            reports in log, Events and metrics why GPUs are not published
pool               which writes change a pool into the desired slices
other_drivers      whether another driver or plugin hands out the same GPUs
mode_transition    the mode in which each GPU is published, and how it changes with the policies file
remembered_modes   the modes of GPUs in a file, which the agent reads after a restart
allocated_devices  which of the node's devices are allocated to claims, by the API server
"""
