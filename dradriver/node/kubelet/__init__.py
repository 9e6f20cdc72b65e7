"""What the kubelet sees of the agent.

plugin   the gRPC servers, and whether the kubelet has the plugin registered
service  the DRA calls of the kubelet
health   the health of the GPUs, for the status of pods
sockets  where their sockets lie, and whether they are still ours
"""
