"""Which claims' GPUs do nothing, as far as that is known; who is told of it stands in docs/idle.md.

pods       whose a process is
claims     whether a claim's devices worked, from what their GPUs did
watch      looks again and again, and says since when each claim is idle
"""
