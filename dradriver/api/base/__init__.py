"""Names, parts of Kubernetes objects, quantities, patches.

names        every name that stands in a Kubernetes object
errors       the error about a wrong annotation
objects      the parts of Kubernetes objects that decisions are made from: metadata, taints, nodes
pods         the parts of pods that decisions are made from
dra_objects  the parts of ResourceSlices and ResourceClaims (DRA) that decisions are made from
storage      the parts of PersistentVolumes, their claims and classes that decisions are made from
gang_barrier_device  the gang barrier device
same_spec    whether two specs ask for the same
affinity     node affinity: narrows a pod to nodes, and gives its author's back
node_maintenance  maintenance and spot nodes
other_schedulers  schedulers that choose GPUs by themselves
pod_security  whether a namespace forbids the node agent
allocating_driver  which driver allocates the devices
jsonpatch    builds JSON patches
quantity     Kubernetes quantities as integers
"""
