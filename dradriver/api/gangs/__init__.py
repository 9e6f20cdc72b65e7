"""Gangs, their owners and sizes.

gang_annotations  what a pod's annotations say of its gang
gang_of_pod   which gang a pod belongs to, from the pod alone
gang_owners   which gang a pod belongs to, from what its owner wrote: JobSet, Job, PyTorchJob and others
gang_size_of_owner  how many pods a gang has, from the owner
gang_support  what pods of a gang can request
impossible_gangs  pods that cannot be in a gang, because the others wait for them
suspendable_owners  owners that can be suspended: the record on them, the patches
"""
