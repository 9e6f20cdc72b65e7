"""Parts of GPUs: shares of compute and memory, and MIG slices at their placements.

offers   which of a node's GPUs may be had in parts, and how they are shared
existing_instances  a GPU that has no other MIG instances than those that exist
layouts  every state that MIG instances can bring a GPU into, and what each is still good for
free_capacity  what is left of each GPU of the nodes of a kind, as arrays
part_requests  what shares and MIG slices have in common: what a request for parts asks of each GPU
gpu_shares  a request for shares: where one fits, and what that costs
mig_slices  the same of MIG slices
part_assignment  several parts of one pod over one node's GPUs, at the least cost
part_phrases  what a request for parts asks for, in words for people
"""
