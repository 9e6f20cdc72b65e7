"""The controller's loop: changes come in, workloads get their turn, periodic work runs.

turn              one turn of the loop, told step by step: read this first
worker            puts the parts of the loop together and runs them
dispatcher        finds the workload of a changed pod, has it observed and its next step done
workload_keeper   keeps the workloads: which pause, which wait for their scheduler, which are forgotten
gang_observer     observes gangs that have not started
step_runner       does what a step says
placer            puts workloads in the queue, and has plans written for them
planner           finds places on the GPUs that a workload may have
hand_over         which pods kube-scheduler gets if there is no place for them
running_gangs     looks at gangs that run
preemption        decides who gets GPUs of pods with lower priority, and follows the evictions
preemption_turns  for which workload preemption may be tried now, and for whom evictions are saved
preemptable       which pods may be preempted, by the policies and by recent evictions
policies          reads the policies file; Events about a bad one
cluster_gauges    counts GPUs, users and waiting pods for the metrics, now and then
background        tasks that run for as long as the controller leads
"""
