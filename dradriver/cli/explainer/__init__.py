"""``gputopo explain``: why a pod waits, or which GPUs it got.

* ``subject``: the facts on the pod object itself, shown before anything else is read.
* ``verdict``: the controller's own review and decision about the pod, with the pod's history.
* ``workload_reader``: reads the pod's workload from the cluster as the controller has it: the pod alone, or its gang.
* ``workload``: the base class that leads from a workload to its verdict; the next two modules have its subclasses.
* ``pod_workload``: a workload of one pod that gets its place by itself.
* ``gang_workload``: a workload of all pods of a gang that has not started.
* ``static_pods``: pods that the scheduler alone places.
* ``gang_shown``: the pod's gang with the states of its pods, as the command shows it.
* ``gang_ways``: the claims that must end so that a whole gang has a place, and the room in each network level.
* ``gpu_sets``: the sets of GPUs that are free, and the sets that would be free if other pods ended.
* ``gpu_holders``: the claims and pods that use the GPUs of a node.
* ``queue_position``: the position of a pod or gang in the queue, and all waiting workloads.
* ``shown_places``: the place that a pod has, is tentatively given, or would get, as the command shows it.
* ``pod_history``: the past of a pod, including Events.
* ``model``: the types of all these facts, as JSON and YAML have them.
* ``explain_document``: the document that shows all of this to people.
"""
