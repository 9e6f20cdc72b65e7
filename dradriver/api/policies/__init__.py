"""The policies file: what an administrator says of GPUs, of what pods may name, of weights and of NCCL. No I/O.

model   its sections and defaults
tenants  those of who shares the cluster, and of the queue
fields  what a field may hold, in whatever section
read    from a text to a model, with what is wrong and where
meaning  a pod's words with what the file stands for in their place
modes   what of a GPU is handed out, by the section ``gpus``
partitions  who may have which of a node's GPUs, by the section ``tenants``
"""
