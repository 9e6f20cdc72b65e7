"""Workloads that wait for GPUs: their order, and which of them are worth a try to place now. No I/O.

The controller's worker calls this package.

agenda   the pods and gangs that the worker must process, now or at a given time
pending      the pods of a workload, which get their places together, and what is remembered of them
memory   what is remembered of a pod or a gang between two times that it is processed
workload_register  all workloads that the controller manages
backoffs  the failures of a workload, and its back-off time
placement_request  a pod's request, parsed once
equivalence_classes  the workloads that find a place together or not at all
full_nodes  the nodes that have refused a request for GPUs, of any equivalence class
waiting  the queue of the workloads that need a place
namespace_tenants  the tenant of each namespace, with its weight, caps and share
limits   the limits on a workload's GPUs; features register their limits here
caps     the GPUs that a tenant's cap leaves to a workload
lazy_heap  the first of many keys whose positions can move back without notice
tenant_turns  the tenant and the namespace whose workload is next
tenant_shares  GPU time by tenant, decayed, with the GPUs that each tenant has now
kueue_entries  the time at which Kueue admitted a workload
queue_order  all waiting workloads in the order in which they would be served if each found a place
rechecks  the blocked equivalence classes that are tried again, and when
write_lanes  the workloads whose objects may be written now: slots, and a lane for each namespace
reservation_rules  the rules for GPUs that are reserved for workloads that have waited too long
reservation_access  the workloads that may use reserved GPUs, and the form of reservations in the API
reservation_waits  how long workloads have waited for a reservation, and how many failed for their tenant
eviction_record  the workloads that were evicted for others recently, also by former leaders
scheduler_pace  how many pods with a tentative placement may wait for a scheduler
"""
