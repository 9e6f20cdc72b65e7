"""Gangs, their owners and sizes.

gangs         the gang that a pod names
gang_members  which gang a pod belongs to, from the pod alone
gang_owners   the same from owners: JobSet, Job, PyTorchJob and others
gang_sizes    how many pods a gang has, from the owner
gang_support  what pods of a gang can request
gang_waits    pods that cannot be in a gang, because the others wait for them
suspends      owners that can be suspended: the record on them, the patches
"""
