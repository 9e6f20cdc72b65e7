"""The agent's interface to the kubelet.

plugin              registers with the kubelet, and runs the gRPC servers
service             the DRA service: the kubelet's prepare and unprepare calls
gpu_health_service  the health service: the health of GPUs, for the status of pods
sockets             the socket files: their paths, and whether they still belong to this agent
"""
