"""The user's cluster for the commands: access to it, reading it, and what several commands compute and show of it.

* ``access``: which API server, and with whose credentials.
* ``cluster_options``: the options that every command about a cluster has.
* ``cluster_reading``: lists of objects from that server, and what to do if it refuses.
* ``cluster_lists``: lists of these objects for one reading of the cluster, and what could not be read.
* ``policies_in_force``: the policies that the driver follows, for every command that decides as it does.
* ``tenant_usage``: the tenants' past usage and the reservations, from the driver's namespace.
* ``listed_cluster``: the controller's cluster cache filled from lists (``Scene``), for all commands that decide as the
  controller does.
* ``free_gpus``: free GPUs by size and quality, for ``gputopo free`` and the page.
* ``gpu_faults``: what is wrong with which GPU, and the repair, for ``health`` and ``verify``.
* ``largest_gangs``: where nodes stand in the network, and the largest gang that each of its levels holds now.
* ``moves``: simulated moves of pods that would free sets, for ``gputopo defrag``.
* ``workload_names``: how workloads are named, in what commands print and in what users type.
* ``cluster_view``: all of ``topo --cluster``: nodes and who holds their GPUs, for people and as data.
"""
