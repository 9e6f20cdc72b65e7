"""Claims on this node: made ready for a pod, remembered, given back.

prepare     preparing and unpreparing claims
allocation  from an allocated claim to what is prepared
making      what has to be made on the hardware for that
ledgers     all that is kept on disk of claims
checkpoint  what the kubelet was answered
cdi         the same, as the container runtime reads it
reconcile   gives back what nobody uses
rebuild     claims that a newer agent prepared
lock        one lock for two instances of the agent
"""
