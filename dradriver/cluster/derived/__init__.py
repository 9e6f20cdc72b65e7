"""What is computed from the cluster cache.

workloads   single pods and gangs with their claims, and what they use
conflicts   whether pinned devices go together, and which claim has to go
end_times   when pods end at the latest, and with them their GPUs' use
gpu_states  the state of each GPU in one word
"""
