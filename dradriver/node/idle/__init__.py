"""Which claims' GPUs do nothing, as far as that is known; who is told of it stands in docs/idle.md.

pod_of_process  which pod a process is of
claim_work      whether a claim's devices worked, from what their GPUs did
idle_watch      looks again and again, and says since when each claim is idle
"""
