"""Kubernetes words: annotations, attributes, opaque config; builders of claims and slices. No I/O."""
