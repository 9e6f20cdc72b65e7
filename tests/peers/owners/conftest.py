"""The tests' cluster with the driver, which may suspend what makes pods, and a namespace for each story."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import deploy
from tests.cluster import Cluster
from tests.e2e.conftest import cluster
from tests.e2e.conftest import namespace as namespace_of_pods
from tests.e2e.kubectl import Namespace

__all__ = ["SETTINGS", "cluster", "driver", "namespace", "namespace_of_pods"]

# In the order in which they go: a TrainJob's runtime stays until that is gone.
_MAKERS = ("trainjobs", "trainingruntimes", "jobsets", "leaderworkersets", "mpijobs", "pytorchjobs")
_SUSPENDED = ("Job", "JobSet", "LeaderWorkerSet", "PyTorchJob", "MPIJob", "TrainJob")
SETTINGS = tuple(f"controller.gangOwners.{kind}.suspend=true" for kind in _SUSPENDED)


@pytest.fixture(scope="session")
def driver(cluster: Cluster) -> Cluster:
    """The cluster with the driver installed, with the right to have gangs start anew."""
    deploy.install(cluster, *SETTINGS)
    return cluster


@pytest.fixture
def namespace(namespace_of_pods: Namespace) -> Iterator[Namespace]:
    """A namespace of its own; what makes pods there goes first."""
    yield namespace_of_pods
    known = namespace_of_pods.kubectl("api-resources", "--namespaced", "-o", "name").stdout.split()
    by_name = {name.partition(".")[0]: name for name in known}
    for kind in (by_name[name] for name in _MAKERS if name in by_name):
        namespace_of_pods.kubectl("delete", kind, "--all", "--timeout=90s")
