"""The sessions that the documents show, on a cluster with the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.api.base import names
from tests import consoles
from tests.cluster import Cluster
from tests.e2e import documented
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, pod, told_why


@pytest.mark.parametrize("page", [consoles.EXAMPLES, consoles.GANGS], ids=lambda page: page.stem)
def test_a_pages_commands_print_what_it_shows(namespace: Namespace, tmp_path: Path, page: Path) -> None:
    documented.run(namespace.cluster, page, tmp_path, namespace=namespace.name)


@pytest.fixture
def with_other_policies(driver: Cluster, installation: Installation) -> Iterator[Cluster]:
    """The cluster, for a test that upgrades the release."""
    installation.forget()
    yield driver
    installation.install()


def test_the_tutorial_prints_what_it_shows(with_other_policies: Cluster, tmp_path: Path) -> None:
    documented.run(with_other_policies, consoles.TUTORIAL, tmp_path)


def test_what_is_shown_of_a_pod_that_waits(namespace: Namespace, tmp_path: Path) -> None:
    """As the page says: another pod uses one GPU of each node, and the pod requests eight."""
    for node in ("node-a", "node-b"):
        namespace.apply(pod(f"notebook-{node[-1]}", gpus=1, words={names.POLICY: "best-effort"}, node=node))
    namespace.wait_running("notebook-a", "notebook-b")
    namespace.apply(pod("trainer", gpus=8, words={names.POLICY: "nvlink"}))
    told_why(namespace, "trainer")
    documented.run(namespace.cluster, consoles.TROUBLESHOOTING, tmp_path, namespace=namespace.name)
