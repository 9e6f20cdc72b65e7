"""Finds claims on GPUs that do no work; docs/tasks/idle.md describes the annotations, Events and metrics.

pod_of_process  the pod that a process belongs to
claim_work      whether a claim's devices worked, from the work of their GPUs
idle_watch      checks at an interval since when each claim is idle
"""
