"""ResourceClaims.

claims         builds the claim that pins chosen GPUs
pins           reads which devices a claim uses or is pinned to
config         the opaque configuration of a claim
results        what was chosen, as annotations
templates      reads a ResourceClaimTemplate as a request, and builds the claim from it
nic_templates  requests for NICs in templates and claims
channels       channels of multi-node NVLink (ComputeDomains of NVIDIA)
exclusive      GPUs whose fractions belong to one namespace at a time
plans          which gang plan a claim belongs to
preempts       which pods have to end for a claim, and until when it waits
reservations   reserved GPUs, in a ConfigMap
idleness       that the devices of a claim do nothing, as the node agent says
usage          GPU time by the hour, in ConfigMaps
search_limits  how much of the scheduler's search a claim may cost
"""
