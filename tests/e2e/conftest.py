"""A real cluster with the chart installed, and a namespace for each test."""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import deploy, needs
from tests.cluster import Cluster
from tests.e2e import standing
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, owners


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules in an order in which little is started and installed twice.

    1. Modules with clusters of their own: a process has ended these before it starts the cluster that others share.
       A cluster needs 26 inotify instances, and Linux gives a user 128 by default.
    2. Modules that need settings of the chart.
    3. Modules that need none. They are many and short, so that all processes have work to the end.
    """
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    ordered = iter(sorted(ours, key=_position))
    positions = set(ours)
    items[:] = [next(ordered) if item in positions else item for item in items]


def _position(item: pytest.Item) -> tuple[bool, bool, str]:
    """Return what to sort a test by."""
    shares_cluster = "cluster" in getattr(item, "fixturenames", ())
    marker = item.get_closest_marker("chart")
    settings = f"{marker.args} {marker.kwargs}" if marker else ""
    return shares_cluster, not settings, settings


@pytest.fixture(scope="session")
def cluster(worker_id: str) -> Iterator[Cluster]:
    """The cluster of this process; one that runs already as `e2e` is used and kept."""
    needs.real_cluster()
    by_hand = worker_id == "master"
    cluster = Cluster("e2e" if by_hand else f"e2e-{worker_id}")
    kept = by_hand and cluster.is_up()
    if not kept:
        cluster.down()  # a killed run may have left it
    cluster.up()
    yield cluster
    if not kept:
        cluster.down()


@pytest.fixture(scope="session")
def installation(cluster: Cluster) -> Installation:
    """The chart on the cluster, for tests that change its settings."""
    return Installation(cluster)


@pytest.fixture(scope="module")
def driver(installation: Installation, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster with the driver, installed with the settings of the module's mark ``chart``.

    After the module everything that outlives a namespace must be as before.
    """
    marker = request.node.get_closest_marker("chart")
    install = functools.partial(installation.install, *marker.args, **marker.kwargs) if marker else installation.install
    install()
    cluster = installation.cluster
    before = standing.read(cluster)
    yield cluster
    install()

    def changed() -> list[str]:
        return standing.changes(before, standing.read(cluster))

    eventually("the cluster is as it was before the module", lambda: not changed(), timeout_s=90, why=changed)


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
