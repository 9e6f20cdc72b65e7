"""What a set of GPUs is worth: figures of every subset of a machine, computed once for all machines that are alike.

shape       a machine without its names
canonical   one numbering for all machines that are alike
masks       the positions of a set of GPUs as bits of a number, and back
subsets     facts about all subsets of a few positions at once, as arrays over bit masks
symmetries  which sets a machine's symmetries make alike
link_channels  a shape's wires in channels of each speed, as NCCL's search counts them
reach       over what the GPUs of each set reach each other
ring_bottlenecks  switches, NUMA nodes and pairs that every ring enters and leaves
ring_capacity  for how many rings the wires of each set have room
chains      for how many open chains at once
cycles      every ring of up to eight members
ring_packing  how many rings fit into links at once, exactly
nccl_search  how many channels of which speed NCCL's search finds
busbw       the all-reduce bus bandwidth that NCCL will reach
strength    the same where nothing can be predicted: by the weakest step of the best ring
blocks      which sets the machine's maker allows, and from which of its blocks they are best taken
facts       what is costly to compute of a canonical shape
weighted_cache  what was computed, as long as it is of use
criteria    what a set must be
tables      everything about every subset of a machine, looked up by mask
tours       the best closed tour over GPUs or nodes
rank_order  the order in which a set's GPUs should stand, and its split over containers
estimates   how long an all-reduce of a message takes
"""
