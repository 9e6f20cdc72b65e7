"""The node agent: reads the machine, publishes its slices, prepares claims for the kubelet.

main        the command line
agent       the parts, and how they start and stop together
discovery   reading the machine
publisher   keeps the node's ResourceSlices as they should be
pool        which writes make a pool hold the wanted slices
beside      whether something else hands out the same GPUs
plugin      the gRPC servers, and whether the kubelet has the plugin registered
sockets     where their sockets lie, and whether they are still ours
service     the DRA calls of the kubelet
prepare     preparing and unpreparing claims
allocation  from an allocated claim to what is prepared
checkpoint  what is prepared, on disk
cdi         the same, as the container runtime reads it
reconcile   gives back what nobody uses
files       files that are all there or not at all
lock        one lock for two instances of the agent
metrics     what the agent counts
errors      errors that end up in a pod's events
protos      the kubelet's gRPC stubs, generated
"""
