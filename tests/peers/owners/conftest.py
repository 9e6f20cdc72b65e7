"""The tests' cluster with the driver, which may suspend what makes pods, and a namespace for each story."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import deploy
from tests.cluster import Cluster
from tests.e2e.conftest import cluster
from tests.e2e.conftest import namespace as namespace_of_pods
from tests.e2e.kubectl import Namespace, eventually

__all__ = ["cluster", "driver", "namespace", "namespace_of_pods"]

_MAKERS = ("jobsets", "leaderworkersets", "mpijobs", "pytorchjobs", "trainjobs")
_SUSPENDED = ("Job", "JobSet", "LeaderWorkerSet", "PyTorchJob", "MPIJob", "TrainJob")


@pytest.fixture(scope="session")
def driver(cluster: Cluster) -> Cluster:
    """The cluster with the driver installed, with the right to have gangs start anew."""
    deploy.install(cluster, *(f"controller.gangOwners.{kind}.suspend=true" for kind in _SUSPENDED))
    return cluster


@pytest.fixture
def namespace(namespace_of_pods: Namespace) -> Iterator[Namespace]:
    """A namespace of its own; what makes pods there goes first."""
    yield namespace_of_pods
    known = namespace_of_pods.kubectl("api-resources", "--namespaced", "-o", "name").stdout.split()
    for kind in (name for name in known if name.partition(".")[0] in _MAKERS):
        namespace_of_pods.kubectl("delete", kind, "--all", "--timeout=90s")
    eventually("no pod is left", lambda: not namespace_of_pods.list("pods"))
