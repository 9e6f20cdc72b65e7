"""Values that are computed from the cluster cache.

workloads   single pods and gangs with their claims, and what they use
conflicts   whether claims that are pinned to devices fit together, and which claim must be released
end_times   the latest time at which pods end and free their GPUs
gpu_states  the state of each GPU in one word
"""
