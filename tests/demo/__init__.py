"""make demo: the examples on a real Kubernetes, or offline through the same allocator."""
