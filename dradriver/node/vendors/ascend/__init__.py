"""Huawei's Ascend NPUs. There is no reading of real ones yet: only simulated machines have them.

simulated  what a container is given of a simulated one
"""
