"""Parts of GPUs: shares of compute and memory, and MIG slices at their placements.

offers   which of a node's GPUs may be had in parts
existing MIG instances that are there already
layouts  every state that MIG instances can bring a GPU into, and what each is still good for
free_capacity  what is left of each GPU of the nodes of a kind, as arrays
gpu_shares  a request of shares: where one fits, and what that costs
mig_slices  the same of MIG slices
assign   several parts of one pod over a node's GPUs, at the least cost
part_phrases  what a request asks for, in words for people
"""
