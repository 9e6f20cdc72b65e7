"""Gangs, their owners and sizes.

gang_annotations  the gang annotations of a pod
gang_of_pod   which gang a pod belongs to, from the pod alone
gang_owners   which gang a pod belongs to, from its owner's labels: JobSet, Job, PyTorchJob and others
gang_size_of_owner  how many pods a gang has, from the owner's spec
gang_support  which features pods of a gang can use
impossible_gangs  pods that cannot be in a gang, because their owner creates the others later
suspendable_owners  owners that can be suspended: the record on them, the patches
"""
