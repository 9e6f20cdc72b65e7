"""The controller's loop: it takes in changes, serves workloads, and runs periodic work.

turn              one turn of the loop, step by step: read this first
worker            connects the parts of the loop and runs them
dispatcher        finds the workload of a changed pod, and starts its next step
workload_keeper   keeps the workloads: which pause, which wait for their scheduler, which are forgotten
gang_observer     observes gangs that have not started
step_runner       does the next step of a workload
placer            puts workloads in the queue, plans their places, and starts the writes
planner           finds places on the GPUs that a workload may have
hand_over         which pods are handed over to kube-scheduler
running_gangs     restarts running gangs that lost pods
preemption        gives workloads the GPUs of pods with lower priority, and follows the evictions
preemption_turns  for which workload preemption may be tried now, and for which one evictions are saved
preemptable       which pods may be preempted, by the policies and by recent evictions
policies          reads the policies file; Events about a bad one
cluster_gauges    counts GPUs, users and waiting pods for the metrics at intervals
background        tasks that run for as long as the controller leads
"""
