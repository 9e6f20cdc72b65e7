"""A simulated cluster that jobs come to and leave, under one policy or another.

* ``simulated_cluster``: nodes, their free GPUs, and what sets of them are worth.
* ``placement_policies``: our allocator, and those that it is compared with.
* ``trace``: the jobs, drawn by chance or read from a file.
* ``job_sizes``: how many GPUs a job can have on some machines.
* ``policy_replay``: lets the jobs come, wait, run and leave, and measures what became of them.
* ``published_shapes``: what operators published of their jobs; ``shape_fit`` and ``shaped_jobs`` draw jobs like them.
* ``orders``: the orders in which waiting jobs are served. ``simulated_queue`` holds those that wait.
  ``simulated_reservations`` holds the GPUs that are kept for one of them. ``order_replay`` lets the jobs come and
  leave, ``order_figures`` measures.
* ``mixed``: requests of whole GPUs, shares and MIG slices, and what became of them.
* ``mixed_policies``: our allocator for those, and what a scheduler does alone.
"""
