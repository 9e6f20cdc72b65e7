"""What a pod or a gang needs next. Pure functions.

next_step         the next step of one pod; when a tentative placement ends
deadlines         how long to wait for the scheduler, for pods and for claims
pod_steps         all steps that there are for a pod
gang_step         the states of a gang, and its next step
gang_running      what to do about a running gang that lost pods
gang_sizes        how many pods a gang has
withdraw_reasons  why a tentative placement is revoked
ending            which pods must end for some claims, and how long to wait for them
idle_step         the next step for pods whose GPUs do nothing
idle_workloads    workloads with idle pods
"""
