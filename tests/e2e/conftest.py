"""A real cluster with the chart installed, and a namespace for each test."""

from __future__ import annotations

import re
import uuid
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
    words = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:50].strip("-")
    name = f"t-{words}-{uuid.uuid4().hex[:6]}"
    driver.kubectl("create", "namespace", name)
    yield Namespace(driver, name)
    driver.kubectl("-n", name, "delete", "deployments,replicasets,statefulsets,jobs,pods", "--all", "--timeout=120s")
    driver.kubectl("delete", "namespace", name, "--wait=false")  # it is only begun with after five seconds
    eventually("every GPU is free again", lambda: not owners(driver))
    for node in driver.nodes.values():
        eventually(f"{node.name} has no CDI file left", lambda node=node: not deploy.cdi_files(node))  # type: ignore[misc]
        eventually(f"{node.name} has no checkpoint entry left", lambda node=node: not deploy.prepared(node))  # type: ignore[misc]
