"""What the kubelet sees of the agent.

plugin              registers with the kubelet, and runs the gRPC servers
service             the DRA service: the kubelet's prepare and unprepare calls
gpu_health_service  the health service: how the GPUs are, for the status of pods
sockets             the socket files: where they lie, and whether they are still ours
"""
