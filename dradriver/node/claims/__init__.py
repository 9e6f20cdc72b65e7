"""Claims on this node: made ready for a pod, remembered, given back.

prepare     preparing and unpreparing claims
allocation  from an allocated claim to what is prepared
checkpoint  what is prepared, on disk
cdi         the same, as the container runtime reads it
reconcile   gives back what nobody uses
lock        one lock for two instances of the agent
"""
