"""Which set of one machine's free GPUs is taken.

numbering   between a machine's own GPU numbers and positions
fallback_criteria  the criteria of a request's fallback levels, from all that it prefers to what it requires
filters     which single GPUs a request accepts
nearest_nics  which NICs go with a set, different ones for different GPUs; which GPUs have one near them
gpus_with_nics  which free GPUs can all have their NICs at the same time
set_order   which of the sets that meet the criteria goes first
best_set    the first set in that order inside a mask of free positions
free_set_counts  how many sets of each size the free positions form
phrases     what a request for whole GPUs asks for, in words for people
machine_refusals  why no set of a machine fits a request, and the nearest one that does
machine_choice  all of it: the choice for a request on one machine
"""
