"""Decides what a pod or a gang needs next. Pure functions, except ``observe``, which updates what is remembered.

observe           the state of a pod or a gang, and since when
step              the next step of a pod or a gang
actions           all possible steps
pod_step          the step of a single pod
gang_step         the states of a gang, and its step
rules             rules that hold for single pods and gangs alike
deadlines         how long to wait for the scheduler, for pods and for claims
gang_running      what to do about a running gang that lost pods
gang_sizes        how many pods a gang has
withdraw_reasons  why a tentative placement is revoked
ending            which pods must end for some claims, and how long to wait for them
"""
