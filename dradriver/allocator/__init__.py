"""Which GPUs of which machines for a request. A library of its own; knows nothing of Kubernetes."""
