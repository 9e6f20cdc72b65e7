"""Writes to the API server, and handles each answer.

executor             runs writes of many workloads at once
commit               writes a plan, all or nothing: claims, gates, barrier devices
api_writer           writes single claims
pod_writer           writes pods: the gate, annotations
several_writes       runs the writes of one workload, a few at once
write_outcome        classifies errors of writes: trouble of the server, the moment or the object
shared_claim_owners  adds pods to the claim that they share, several in one write
reasons              writes on pods why they wait
placed               records placed pods: quality of the set, time waited
template_writer      templates for pods that the scheduler alone places
garbage_collector    deletes claims of this driver that nothing else removes
release_owner        reads the chart's object that owns the objects of the controller
gang_barrier_slice   the slice with the gang barrier devices, and whether the barrier works
usage_store          reads and writes the GPU time of tenants
reservation_store    reads and writes reservations, for the next leader
"""
