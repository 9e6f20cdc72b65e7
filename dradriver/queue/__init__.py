"""Pods that wait for GPUs: who they are, in which order, and whom it is worth asking about. No I/O.

agenda   which pods and gangs have to be looked at, now or at a time
pending      who gets a place together, and what it was promised
memory   what is remembered of a pod or a gang between two looks
workload_register  all workloads that the controller looks after
backoffs  how a workload has failed, and until when it is left alone
placement_request  what a pod asks for, parsed once
equivalence_classes  who finds a place or not as others do
full_nodes  which nodes have refused a request for GPUs, of any class
waiting  who wants a place, in which order
namespace_tenants  whose a namespace is, and what each tenant has had for its weight
limits   what keeps GPUs from a workload; features register here
caps     which GPUs a tenant's cap leaves to a workload of its
lazy_heap  the first of many keys, each of which may move back unnoticed
tenant_turns  whose turn it is among tenants, and who steps back for looks in vain
tenant_shares  GPU time by tenant, decayed, with what each has now
kueue_entries  since when those stand in it whom Kueue lets in
queue_order  everybody who waits, in the order in which they are served if all find a place
rechecks  which blocked kinds are asked whether they may find a place by now, and when
write_lanes  who may be written now: slots, a lane for each namespace, and those that wait
reservation_rules  GPUs kept for whom the order has passed by for too long
reservation_access  whose they are, who else may have them, and how they are written
reservation_waits  since when workloads wait for one, and how often one did not help their tenant
eviction_record  who had to end for others lately, also by former leaders
scheduler_pace  how many promises may wait for a scheduler
"""
