"""``gputopo explain``: why a pod waits, or what it got.

* ``subject``: what the pod says itself, shown before anything else is read.
* ``verdict``: the controller's own review and decision about the pod, with what happened to it.
* ``workload_reader``: the pod, alone or with its gang, read as the controller has it.
* ``workload``: the one path from a workload to its verdict.
* ``pod_workload``: what is so of a pod that gets its place by itself.
* ``gang_workload``: what is so of all pods of a gang that has not started.
* ``static_pods``: pods that the scheduler alone places.
* ``gang_shown``: the gang that a pod is of, and how far it is, as it is shown.
* ``gang_ways``: what would make a place for all of a gang.
* ``gpu_sets``: which sets of GPUs are free, and which would be if others ended.
* ``gpu_holders``: who holds the GPUs of a node.
* ``queue_position``: the position of a pod or gang in the queue.
* ``shown_places``: what a pod has, is promised or would get, as it is shown.
* ``pod_history``: what happened to a pod so far, Events among it.
* ``model``: all that is known of a pod.
* ``document``: what is shown of it, for people and as data.
"""
