"""Fractions of GPUs: shares of compute and memory, and MIG slices at their placements. ``fleet`` calls this package.

offers   the GPUs of a node that can be used as fractions, and the rules for their shares
existing_instances  a GPU that can have only the MIG instances that exist already
layouts  every state that MIG instances can bring a GPU into, and the fractions that still fit in each state
free_capacity  the free capacity of each GPU of the nodes of a kind, as arrays
part_requests  the common protocol of requests for shares and for MIG slices
gpu_shares  a request for shares: the GPUs where a share fits, and its cost
mig_slices  a request for MIG slices: the GPUs where a slice fits, and its cost
part_assignment  the assignment of several fractions of one pod to one node's GPUs, at the least cost
part_phrases  texts for people about a request for fractions
"""
