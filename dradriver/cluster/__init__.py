"""The cluster cache: what reflectors showed, and the controller's own writes at once.

``gputopo explain`` and ``free`` fill the same cache from one list of each kind.

derived  what is computed from the cache: running workloads, conflicts, ends, states of GPUs
cache    the whole cache, and how a changed object changes it
views    nodes with their GPUs and users, as gputopo shows them
pods     pods: gangs, users of claims, volumes, neighbours, GPU time
nics     NICs that other drivers hand out
gpus     GPUs: devices of slices, what is free, what is reserved
records  what is kept of each object
nodes    nodes as arrays: labels, taints, what they have left
"""
