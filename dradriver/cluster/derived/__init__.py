"""What is computed from the cluster cache.

running_units  workloads that run on GPUs, and the cost of ending each
conflicts      whether pinned devices go together, and which claim has to go
ends           when pods end at the latest, and with them their GPUs' use
gpu_states     the state of each GPU in one word
"""
