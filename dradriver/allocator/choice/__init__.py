"""Which set of one machine's free GPUs is taken.

numbering   between a machine's own GPU numbers and positions
fallback_criteria  the criteria that a request sets, rung by rung
filters     which single GPUs a request would take
nearest_nics  which NICs go with a set, different ones for different GPUs; which GPUs have one near them
served_gpus  which GPUs can all have their NICs
set_order   which of the sets that meet the criteria goes first
best_set    the best set of free positions
free_sets   how many sets some free positions come to
phrases     what a request asks for, in words for people
machine_refusals  why nothing fits, and the nearest thing that does
choose      all of it: the choice on one machine
"""
