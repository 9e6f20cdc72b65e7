"""What a pod or a gang needs next. Pure functions, but ``observe``, which updates what is remembered.

observe           how far a pod or a gang is, since when
step              what has to be done for a pod or a gang
actions           all that can have to be done
pod_step          the step of a single pod
gang_step         the states of a gang, and its step
rules             rules that hold for single pods and gangs alike
deadlines         how long to wait for the scheduler, for pods and for claims
gang_running      what to do about a running gang that lost pods
gang_sizes        how many pods a gang has
withdraw_reasons  why a tentative placement is revoked
ending            which pods must end for some claims, and how long to wait for them
"""
