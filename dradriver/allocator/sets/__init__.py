"""What a set of GPUs is worth: figures of every subset of a machine, computed once for all machines that are alike.

shape       a machine without its names
canonical   one numbering for all machines that are alike
subsets     facts about all subsets of a few positions at once, as arrays over bit masks
busbw       the all-reduce bus bandwidth that NCCL will reach
facts       what is costly to compute of a canonical shape
criteria    what a set must be
tables      everything about every subset of a machine, looked up by mask
tours       the best closed tour over GPUs or nodes
rings       the order in which a set's GPUs should stand, and its split over containers
estimates   how long an all-reduce of a message takes
"""
