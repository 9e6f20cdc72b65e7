"""What is read and shown of a cluster: by ``gputopo topo --cluster`` every node's machine, and who holds which GPU.

* ``access``: which API server, and with whose credentials.
* ``cluster_options``: the options that every command about a cluster has.
* ``cluster_reading``: objects from that server, and what to do where it refuses.
* ``cluster_lists``: lists of these objects for one reading of the cluster, and what could not be read.
* ``policies_in_force``: the policies that the driver follows, for every command that decides as it does.
* ``tenant_usage``: what tenants have had and what is reserved, from the driver's namespace.
* ``listed_cluster``: the same and more as the controller's own picture, for ``gputopo explain`` and ``free``.
* ``free_gpus``: what is free by size and quality, for ``gputopo free``.
* ``moves``: moves that would free sets, simulated on it, for ``gputopo defrag``.
* ``gangs``: the largest gang of each level of the network, for ``gputopo free``.
* ``cluster_view``: all of ``topo --cluster``: the nodes of ``dradriver/cluster/views``, for people and as data.
"""
