"""``gputopo explain``: why a pod waits, or what it got.

* ``subject``: what the pod says itself, shown before anything else is read.
* ``verdict``: the controller's own review and decision about the pod.
* ``gangs``: the gang of a pod, how far it is, and what the controller does with it next.
* ``decided``: the controller's own decision about the places of a pod or a gang.
* ``together``: what there is to say of a pod whose gang has not started.
* ``gang_helps``: what would make a place for all of a gang.
* ``turns``: whose turn comes before.
* ``alone``: the same of a pod that the scheduler alone places.
* ``places``: what a pod has, is promised or would get.
* ``rooms``: what is free, who holds the rest, and what would have to end for a place, or for a better one.
* ``happened``: what happened so far, Events among it.
* ``model``: all that is known of a pod.
* ``document``: what is shown of it, for people and as data.
"""
