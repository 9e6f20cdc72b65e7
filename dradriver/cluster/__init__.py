"""The cluster cache: the objects that reflectors read, and at once the controller's own writes.

``gputopo explain`` and ``free`` fill the same cache from one list of each kind of object.

derived  values computed from the cache: workloads, conflicts, end times, states of GPUs
cache    the whole cache, and how a changed object changes it
views    nodes with their GPUs and users, as gputopo shows them
pods     pods: gangs, users of claims, volumes, neighbours, GPU time
nics     NICs that other drivers allocate
gpus     GPUs: devices of slices, and which of them are free or reserved
records  the fields that the cache keeps of each object
nodes    nodes as arrays: labels, taints, free resources
"""
