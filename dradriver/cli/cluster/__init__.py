"""The user's cluster for the commands: they log in to it, list its objects, and share the views of it.

* ``access``: the API server and the credentials for it.
* ``cluster_options``: the options that every command about a cluster has.
* ``cluster_reading``: lists of objects from that server, and the error messages if it refuses.
* ``cluster_lists``: all lists for one reading of the cluster, with messages about lists that could not be read.
* ``installation``: whether the driver is installed. Commands whose answer needs the driver say first if it is not.
* ``driver_dependents``: the pods that need the driver, and what to do before and after an uninstallation.
* ``policies_in_force``: the policies that the driver follows, for every command that makes the same decisions as the
  driver.
* ``tenant_usage``: the tenants' past usage and the reservations, from the driver's namespace.
* ``listed_cluster``: the controller's cluster cache filled from lists (``Scene``), for all commands that make the same
  decisions as the controller.
* ``free_gpus``: free GPUs by size and quality, for ``gputopo free`` and the page.
* ``gpu_faults``: the faults of each GPU, with the repair, for ``health`` and ``verify``.
* ``largest_gangs``: the network location of nodes, and the largest gang that each network level has room for now.
* ``moves``: simulated moves of pods that would free sets, for ``gputopo defrag``.
* ``workload_names``: the names of workloads in the commands' output and in the user's input.
* ``cluster_view``: all of ``topo --cluster``: nodes with the users of their GPUs, as text and as data.
"""
