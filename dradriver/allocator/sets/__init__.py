"""Figures of every set of a machine's GPUs, computed once for all machines that are alike.

``choice`` and ``fleet`` read them. A set is a bit mask of GPU positions. An array over all sets has one entry for each
mask: shape (2**g,) for g GPUs.

shape       a machine without its names
canonical   one numbering for all machines that are alike
masks       conversion between positions of GPUs and masks, in which bit ``i`` is position ``i``
subsets     facts about all subsets of a few positions at once, as arrays over bit masks
symmetries  the sets that are equal because of a machine's symmetries
link_channels  how many of NCCL's channels of each speed the wires of a shape carry
reach       the paths over which the GPUs of each set reach each other
ring_bottlenecks  switches, NUMA nodes and pairs that every ring must enter and leave
ring_capacity  for how many rings the wires of each set have room
chains      for how many open chains the wires of each set have room
cycles      a search for rings of up to eight members in many graphs at once
ring_packing  how many rings fit into links at once, exactly
nccl_search  how many channels of which speed NCCL's search finds
busbw       the all-reduce bus bandwidth that NCCL will reach
strength    the figure that sets are compared by if no bandwidth can be predicted
blocks      the sets that the machine's maker allows, and the best block of GPUs to take a set from
facts       the costly figures of a canonical shape
weighted_cache  a cache for costly figures with a limit on their weight
criteria    the properties that a set must have
tables      all figures of every subset of a machine, by mask
tours       the best closed tour over GPUs or nodes
rank_order  the order of a set's GPUs by rank, and its split over containers
estimates   how long an all-reduce of a message takes
"""
