"""Names, fields of Kubernetes objects, quantities, patches.

names        every name that is written into a Kubernetes object
errors       the error about a wrong annotation
objects      the fields of Kubernetes objects that the driver reads: metadata, taints, nodes
pods         the fields of pods that the driver reads
dra_objects  the fields of ResourceSlices and ResourceClaims (DRA) that the driver reads
storage      the fields of PersistentVolumes, PersistentVolumeClaims and StorageClasses that the driver reads
gang_barrier_device  the gang barrier device
same_spec    whether two specs request the same
affinity     node affinity: restricts a pod to nodes, and restores the affinity that its author wrote
node_maintenance  maintenance and spot nodes
other_schedulers  schedulers that choose GPUs by themselves
pod_security  whether a namespace forbids the node agent
allocating_driver  which driver allocates the devices
jsonpatch    builds JSON patches
quantity     Kubernetes quantities as integers
"""
