"""A cluster in memory on virtual time, in which everything that can interleave with the controller does.

One seed is one story: nodes, pods, strangers and faults, all drawn from one random generator, so that a seed that
fails is replayed exactly. The controller is a black box: a client goes in, requests come out.

``loop`` has the clock, ``server`` the objects (a ``tests.fakes.apistore``), ``client`` and ``watching`` what a
controller sees of them, ``faults`` what goes wrong between the two, ``replicas`` the processes; ``cast``, ``sharing``,
``machines``, ``gangs`` and ``hostile`` make objects, ``world``, ``story`` and ``gang_life`` change them,
``campaigns`` go on with it, ``reserving`` with rules of its own, ``idling`` with those of ``idle_rules``,
``scheduler`` and ``housekeeping`` say when the rest of Kubernetes acts (``tests.fakes.control_plane``); ``truth`` says
what is really free, ``health`` what is excused, ``invariants``, ``liveness``, ``gang_rules`` and ``partition_rules``
what must hold, and ``run`` runs it all.
"""
