"""ResourceClaims.

claim_builder  builds the claim that pins chosen GPUs
pins           reads which devices a claim has or is pinned to, and whose the claim is
opaque_config  the opaque configuration of a claim
result_annotations  what was chosen, as annotations
nvsentinel_note  the same as NVSentinel's node-drainer reads it
claim_templates  reads a ResourceClaimTemplate as a request, and builds the claim from it
gpu_templates  requests for GPUs in templates
nic_templates  requests for NICs in templates and claims
compute_domains  channels of multi-node NVLink (ComputeDomains of NVIDIA)
exclusive      whether claims must keep off GPUs whose fractions are exclusive to one namespace at a time
gang_plan_note  which gang plan a claim belongs to
preemption_note  which pods have to end for a claim, and until when it waits
evicted_workloads  who had to end for others, in the same ConfigMap as reservations
reservation_config_map  reserved GPUs, in a ConfigMap
idleness       that the devices of a claim do nothing, as the node agent says
usage_config_maps  GPU time by the hour, in ConfigMaps
search_limits  how much of the scheduler's search a claim may cost
"""
