"""The node agent: reads the machine, publishes its slices, prepares claims for the kubelet."""
