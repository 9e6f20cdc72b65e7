"""Values of this process's metrics, as a scrape shows them."""

from __future__ import annotations

from prometheus_client import REGISTRY

__all__ = ["sample"]


def sample(name: str, **labels: str) -> float:
    """Return the value of a metric's sample with these labels; 0 if there is none."""
    return REGISTRY.get_sample_value(name, labels) or 0.0
