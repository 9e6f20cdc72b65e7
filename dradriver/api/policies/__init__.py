"""The policies file: what an administrator says of GPUs, of what pods may name, of weights and of NCCL. No I/O.

policy_sections  all sections of the file, with their defaults
tenant_policies  the sections ``tenants`` and ``queue``: who shares the cluster, and in which order
gpu_prices  the section ``prices``: what an hour of a GPU costs
fields  what a field may hold, in whatever section
policies_reader  from a text to a model, with what is wrong and where
workload_words  a pod's words with what the file stands for in their place
gpu_modes  what of a GPU is handed out, by the section ``gpus``
partitions  who may have which of a node's GPUs, by the section ``tenants``
"""
