"""Huawei's Ascend NPUs.

The agent cannot read real NPUs yet, so only simulated machines have them.

simulated_ascend  the container edits of a simulated NPU
"""
