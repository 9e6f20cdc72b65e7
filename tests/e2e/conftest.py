"""A real cluster with the chart installed, and a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import deploy, needs
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, owners


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    needs.real_cluster()
    cluster = Cluster("e2e")
    kept = cluster.is_up()
    cluster.up()
    yield cluster
    if not kept:
        cluster.down()


@pytest.fixture(scope="session")
def driver(cluster: Cluster) -> Cluster:
    """The cluster with the driver installed from the chart."""
    deploy.install(cluster)
    return cluster


@pytest.fixture
def namespace(driver: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of its own; afterwards nothing of it may be left, neither in the API nor on a node."""
    name = "t-" + request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:50].strip("-")
    driver.kubectl("create", "namespace", name)
    yield Namespace(driver, name)
    # A namespace that is deleted with pods in it takes five seconds more.
    driver.kubectl("-n", name, "delete", "deployments,jobs,pods", "--all", "--timeout=90s")
    driver.kubectl("delete", "namespace", name, "--timeout=120s")
    eventually("every GPU is free again", lambda: not owners(driver))
    for node in driver.nodes.values():
        eventually(f"{node.name} has no CDI file left", lambda node=node: not deploy.cdi_files(node))  # type: ignore[misc]
        eventually(f"{node.name} has no checkpoint entry left", lambda node=node: not deploy.prepared(node))  # type: ignore[misc]
