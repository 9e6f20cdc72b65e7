"""A simulated cluster that jobs come to and leave, under one policy or another, for ``gputopo simulate``.

* ``simulated_cluster``: nodes, their free GPUs, and the bandwidth of sets of GPUs.
* ``trace``: the jobs, drawn by chance or read from a file.
* ``job_sizes``: how many GPUs a job can have on some machines.
* ``published_shapes``: what operators published of their jobs; ``shape_fit`` fits a distribution to these figures, and
  ``shaped_jobs`` draws jobs from it.
* ``placement_policies``: policies that choose whole GPUs: the driver's allocator, and other policies for comparison.
  ``mapa`` has the rules of one of these, MAPA's Preserve.
* ``policy_replay``: replays the jobs under one of these policies, and measures waiting times, bandwidths and so on.
* ``orders``: the orders in which waiting jobs are served.
* ``order_replay``: replays the jobs in one order. ``simulated_queue`` has the jobs that wait.
  ``simulated_reservations`` has the GPUs that are reserved for one waiting job. ``order_figures`` measures waiting
  times and fairness.
* ``mixed_replay``: draws and replays requests for whole GPUs, shares and MIG slices (``--fractions``).
* ``mixed_policies``: the policies that place these requests: the driver's allocator, and a scheduler without it.
"""
