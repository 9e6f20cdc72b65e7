"""Owners of pods (Job, JobSet and others), and pods that are evicted.

owner_kinds          the API version in which the server has a kind of owner
owner_reader         reads how many pods a gang has, from its owner
owner_restarts       restarts gangs: suspends and resumes their owners
owner_restart_state  requested restarts, and owners that are suspended
pod_deletions        deletes the pods of gangs whose owner creates them again
owner_suspension     whether an owner can be suspended now, and the write that suspends it
topmost_owner        the topmost owner of some pods
evictions            ends pods for others: evicts them or suspends their owner
workload_ends        how a workload is ended: by its owner, or pod by pod
disruption_budgets   which pods may end now by their PodDisruptionBudgets
eviction_refusals    pods that could not be evicted, and until when no eviction is tried
evict_pods           evicts or deletes pods together, if disruption budgets allow it
idle_writer          warns and ends pods with idle GPUs
"""
