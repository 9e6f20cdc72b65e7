"""The node's ResourceSlices.

node_objects  this node and its slices, as they are in the API
publisher   keeps them as they should be
feature_probe  what the API server keeps of them
notices     what people are told of what keeps GPUs from being published
pool        which writes make a pool hold the wanted slices
other_drivers  whether something else hands out the same GPUs
mode_transition  as what each GPU is published while the policies file changes
remembered_modes  as what they were published last
allocated_devices  which of the node's devices claims have, as the API server knows
"""
