"""``gputopo explain``: why a pod waits, or what it got.

* ``subject``: what the pod says itself, shown before anything else is read.
* ``verdict``: the controller's own review and decision about the pod, with what happened to it.
* ``workload_reader``: reads the pod's workload from the cluster as the controller has it: the pod alone, or its gang.
* ``workload``: the one path from a workload to its verdict; what it leaves open is in the next two.
* ``pod_workload``: a workload of one pod that gets its place by itself.
* ``gang_workload``: a workload of all pods of a gang that has not started.
* ``static_pods``: pods that the scheduler alone places.
* ``gang_shown``: the gang that a pod is of, with the states of its pods, as it is shown.
* ``gang_ways``: what would make a place for all of a gang, and the room that network levels have for its pods.
* ``gpu_sets``: which sets of GPUs are free, and which would be if others ended.
* ``gpu_holders``: who holds the GPUs of a node.
* ``queue_position``: the position of a pod or gang in the queue, and all that wait.
* ``shown_places``: what a pod has, is promised or would get, as it is shown.
* ``pod_history``: what happened to a pod so far, Events among it.
* ``model``: the types of all that is known of a pod, as JSON and YAML have them.
* ``explain_document``: the document that shows all of this to people.
"""
