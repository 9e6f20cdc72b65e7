"""A simulated cluster that jobs come to and leave, under one policy or another, for ``gputopo simulate``.

* ``simulated_cluster``: nodes, their free GPUs, and what sets of them are worth.
* ``trace``: the jobs, drawn by chance or read from a file.
* ``job_sizes``: how many GPUs a job can have on some machines.
* ``published_shapes``: what operators published of their jobs; ``shape_fit`` fits a distribution to these figures, and
  ``shaped_jobs`` draws jobs from it.
* ``placement_policies``: policies that choose whole GPUs: the driver's allocator, and those that it is compared with.
  ``mapa`` has the rules of one of these, MAPA's Preserve.
* ``policy_replay``: replays the jobs under one of them, and measures what became of the jobs.
* ``orders``: the orders in which waiting jobs are served.
* ``order_replay``: replays the jobs in one order. ``simulated_queue`` has the jobs that wait.
  ``simulated_reservations`` has the GPUs that are kept for one of them. ``order_figures`` measures.
* ``mixed_replay``: draws and replays requests for whole GPUs, shares and MIG slices (``--fractions``).
* ``mixed_policies``: the policies that place these: the driver's allocator, and what a scheduler does alone.
"""
