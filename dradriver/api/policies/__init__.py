"""The policies file: the administrator's settings for GPUs, names that pods use, weights and NCCL. No I/O.

policy_sections  all sections of the file, with their defaults
tenant_policies  the sections ``tenants`` and ``queue``: which tenants share the cluster, and in which order
gpu_prices  the section ``prices``: what an hour of a GPU costs
fields  types of fields that several sections use
policies_reader  reads the text of the file; errors name the line and what to write
all_errors  collects all errors of the file instead of the first one
workload_words  replaces a pod's ``workload`` and ``policy`` by the annotations that they stand for
gpu_modes  how a GPU is handed out (whole, in shares, as MIG slices), by the section ``gpus``
partitions  which tenant may use which GPUs of a node, by the section ``tenants``
unmatched_selectors  caps and partitions of tenants that select no GPU of the cluster
"""
