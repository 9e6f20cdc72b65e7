"""Kubernetes words: annotations, attributes, opaque config; builders of claims and slices. No I/O.

names        every name that stands in a Kubernetes object
objects      the parts of Kubernetes objects that decisions are made from: what all have, and nodes
pods         the same of pods
dra_objects  the same of ResourceSlices and ResourceClaims
storage      the same of claims of storage, volumes and their classes
annotation_words  every word that a pod's author can say, each declared once
annotations  a pod's annotations as a Request
parts        what a container asks for, whole GPUs or parts; asks of a pod as one request
vendor_words  what cannot be had of a vendor's GPUs
limits       what the limits of the field's other drivers ask for
gangs        what a pod says of the gang that it belongs to
gang_members  which gang a pod belongs to, from the pod alone
gang_owners  the same by what made the pod: JobSet, Job, PyTorchJob and others
gang_sizes   how many pods a gang has, from the object that made them
suspends     owners that can be suspended: the record on them, the patches
gang_waits   pods that cannot be in a gang, for the others wait for them
gang_support  what a gang's pods can have beside being one
values       values of annotations: strategies, numbers, kinds of GPUs
policies     the policies file, and what its names stand for
messages     how errors about words are put
misspelled  keys that are nearly words of ours, and are none
resolved     what the webhook made of a pod's words, as a note for the controller
ledger       whose devices this process hands out
claims       the claim that pins chosen GPUs
channels     channels of multi-node NVLink, as objects of NVIDIA's ComputeDomains say them
templates    a ResourceClaimTemplate as what its pod asks for, and the claim by it
nics         NICs of other drivers: whose they are, what is asked of them, how one is pinned
nic_templates  requests for NICs in a template, and in the claim by it
simple_cel   selectors that can be read here
pins         what a claim holds, or is promised
exclusive    GPUs whose parts are of one namespace at a time: whom the scheduler alone serves keeps off them
ladder       what a request comes to for the scheduler alone: groups, and alternatives
search_limits  how much a claim may leave to the search of the scheduler
same_spec  whether two specs ask for the same, however they are written
config       the opaque configuration of a claim
affinity     a pod narrowed to chosen nodes, and back
node_life    how long a node stays: maintenance and spot nodes
idleness     that a claim's devices do nothing, as its node's agent says
usage        GPU time by the hour, in ConfigMaps
reservations  which GPUs are reserved for whom, in a ConfigMap
results      what was chosen, as annotations
slice_features  what the API server keeps of a slice
device_attributes  a GPU as devices of a slice
mig_devices  the same of a GPU whose MIG instances are made for claims
slices       a machine as ResourceSlices, and back
lost_gpus    the GPUs that a node lost, in an annotation of its slice
plans        which plan of its gang a claim belongs to
preempts     which pods have to end for a claim, and until when it waits
seats        what a gang's members wait in until all have their GPUs
jsonpatch    a builder of JSON Patches
quantity     quantities as integers
errors       what is said of a wrong word
"""
