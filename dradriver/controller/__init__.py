"""The cluster controller: gives waiting pods their GPUs, from the picture of the cluster and the queue of pods.

worker      sees what changed, gives places in turn
dispatcher  the unit of a pod or a gang that changed, and who looks at it
pod_worker  looks at single pods, and at those of gangs that run
namespaces  labels of namespaces, while tenants have some by them
next_step  what has to be done for one pod now; when a promise ends
pod_steps  all that can have to be done for one
withdraw_reasons  why it ends
decide      where a pod goes: from the picture to a placement
ranking     which sets on which nodes, best first; where there are none, why
nic_choice  which NICs of other drivers go with chosen GPUs
nic_node    one node's NICs for who asks for some, and how long is looked for what they have in common
nic_places  which nodes have such GPUs and NICs

Reservations:

reservations  made, moved and ended; what stands idle for them
reservable   which sets could be reserved for one that waits, and who is on them until when
reservation_store  kept for the next leader

Gangs:

gang_worker  looks at gangs that have not started
gang_step    the states of a gang: what has to be done for one now
gang_sizes   how many pods it has
running_gangs  looks at gangs that run
gang_running  what becomes of one that runs and is not whole
gang_plan    where all pods of a gang go, on one picture
gang_roles   what the allocator is asked for it: its pods by what they want, and where each may go
gang_nics    which NICs of other drivers its pods get
gang_writer  a plan's claims as a whole, and the seats
several_writes  writes for one unit, a few at once
seat_slice   the slice that has the seats, and whether they can be relied on
owner_reader  how many pods a gang has, from the object that makes them
owner_kinds  in which version the server has such objects
owner_restarts  gangs started anew: their owners suspended and resumed
owner_tops   which object is suspended for some pods
owner_suspension  whether it can be suspended now, and the write that does it
preemption   who gets GPUs that others of lower priority have, and what becomes of it
preemptable  who may have to end: by the policies, and by who had to lately
preemption_plan  whom a pod would have ended
gang_preemption_plan  the same of a gang
preemption_cost  what it costs to end units
ending       whom to tell to end for some claims, and until when to wait
evictions    pods that end for others: evicted, or their owner suspended
eviction_refusals  which of these could not be evicted, and until when they are left alone
budgets      disruption budgets of pods that are ended together

Writing:

api_writer  the writes: claims, and pods with them
pod_writer  those of pods: their gate, their annotations
owners      pods written into the claim that they share, those that come together in one write
outcome     what comes of a write: what a failure says of the server, the moment, the object
executor    does them for many at once, and sees to what comes of them
reasons     why pods wait, written on them
placed      what became of them: how good their sets are, how long they waited
garbage_collector  claims of ours that nothing else removes
template_writer  templates of the claims of pods that the scheduler alone places
template_reader  specs of templates, read when a waiting pod names one
nic_slices  slices of NICs, read from when a pod asks for some

Beside it:

audit       whether the books are what the reflectors show
usage_store  GPU time: read when this replica begins to lead, written while it does
idle_pods    pods whose GPUs do nothing: told, warned, ended
idle_units   which of them end together
idle_step    what comes next for them
idle_writer  how they are warned and ended
unread_claims  claims that cannot be read whole, and the Event that says so
background  work that goes on for ever beside all that

The process:

controller  reflectors and worker
policies    its policies file, and Events about a bad one
main        the command line
metrics     what is counted
figures     what there is, who has it and what is waited for, counted now and then
causes      what kind of thing keeps a pod waiting, in one word
"""
