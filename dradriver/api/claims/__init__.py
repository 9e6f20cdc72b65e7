"""ResourceClaims.

claim_builder  builds the claim that pins chosen GPUs
pins           reads which devices a claim has or is pinned to, and which pods it belongs to
opaque_config  the opaque configuration of a claim
result_annotations  the chosen GPUs, as annotations
nvsentinel_note  the chosen GPUs, as the annotation that NVSentinel's node-drainer reads
claim_templates  reads a ResourceClaimTemplate as a request, and builds the claim from it
gpu_templates  requests for GPUs in templates
nic_templates  requests for NICs in templates and claims
compute_domains  channels of multi-node NVLink (ComputeDomains of NVIDIA)
exclusive      whether the policies have GPUs whose fractions are exclusive to one namespace at a time
gang_plan_note  which gang plan a claim belongs to
preemption_note  which pods are preempted for a claim, and how long it waits for them
evicted_workloads  which workloads were evicted for others, in the same ConfigMap as reservations
reservation_config_map  reserved GPUs, in a ConfigMap
idleness       whether the devices of a claim are idle, as the node agent reports
usage_config_maps  GPU time by the hour, in ConfigMaps
search_limits  how much of the scheduler's search a claim may cost
"""
