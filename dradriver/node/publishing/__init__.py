"""The node's ResourceSlices.

publisher  keeps them as they should be
pool       which writes make a pool hold the wanted slices
beside     whether something else hands out the same GPUs
"""
