"""GPU topology for Kubernetes: a DRA driver that gives a pod the right GPUs."""

__version__ = "0.1.0"
