"""Names, parts of Kubernetes objects, quantities, patches.

names        every name that stands in a Kubernetes object
errors       the error about a wrong annotation
objects      the parts of objects that decisions are made from: metadata, nodes
pods         the same of pods
dra_objects  the same of ResourceSlices and ResourceClaims
storage      the same of PersistentVolumes, their claims and classes
gang_barrier_device  the gang barrier device
same_spec    whether two specs ask for the same
affinity     narrows a pod to nodes, and undoes it
node_maintenance  maintenance and spot nodes
allocating_driver  which driver allocates the devices
jsonpatch    builds JSON patches
quantity     Kubernetes quantities as integers
"""
