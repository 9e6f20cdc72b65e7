"""Writes to the API server, and what follows from each answer.

executor             runs writes of many workloads at once
commit               writes a plan, all or nothing: claims, gates, barrier devices
api_writer           writes single claims
pod_writer           writes pods: the gate, annotations
several_writes       runs the writes of one workload, a few at once
write_outcome        what an answer means: for the server, the moment or the object
shared_claim_owners  adds pods to the claim that they share, several in one write
reasons              writes on pods why they wait
placed               records placed pods: quality of the set, time waited
template_writer      templates for pods that the scheduler alone places
garbage_collector    deletes claims of ours that nothing else removes
release_owner        the object of the chart that owns what the controller creates
gang_barrier_slice   the slice with the gang barrier devices, and whether gangs can rely on it
usage_store          reads and writes the GPU time of tenants
reservation_store    reads and writes reservations, for the next leader
"""
