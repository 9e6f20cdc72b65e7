"""The choice of a set among the free GPUs of one machine. ``fleet`` and the CLI call it.

numbering   conversion between a machine's own GPU numbers and positions
fallback_criteria  the criteria of a request's fallback levels, from all preferred constraints to the required ones
filters     the single GPUs that a request accepts
nearest_nics  the NICs for a set, different ones for different GPUs, and the GPUs that have a NIC near them
gpus_with_nics  the free GPUs that can all have their NICs at the same time
set_order   the order of the sets that meet the criteria
best_set    the first set in that order among the free GPUs
free_set_counts  how many sets of each size the free GPUs form
phrases     texts for people about a request for whole GPUs
machine_refusals  why no set of a machine fits a request, and the nearest set that does
machine_choice  the choice for a request on one machine, made with all the modules above
"""
