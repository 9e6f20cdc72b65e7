"""A real Kubernetes on this machine, without Docker: two nodes, for tests and demos.

`python -m tests.cluster up` starts it, `down` removes every trace of it.
"""

from __future__ import annotations

from tests.cluster.errors import ClusterError, Unavailable
from tests.cluster.local import Cluster
from tests.cluster.node import Node
from tests.cluster.requirements import why_not

__all__ = ["Cluster", "ClusterError", "Node", "Unavailable", "why_not"]
