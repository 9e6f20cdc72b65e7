"""Huawei's Ascend NPUs. There is no reading of real ones yet: only simulated machines have them.

simulated_ascend  what a container is given of a simulated one
"""
