"""The rest of Kubernetes on a ``Store``: one model for the cluster in memory and for the stories.

fit        whether a pod may run on a node, devices aside
devices    which devices a claim gets on a node
binding    what keeps a pod from being bound that has its devices
scheduler  kube-scheduler, which decides and writes when it is told to
jobs       the Job controller, and JobSet's: what suspending, resuming and lost pods come to
cleanup    the claim controller and the garbage collector

Nobody here acts by himself, draws anything or knows the time: ``tests/fakes/gpucluster.py`` lets all of it happen at
once, ``tests/simulator`` late, in pieces and with faults.
"""
