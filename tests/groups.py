"""Which tests of a real cluster run in one process, one after another, while other groups run next to them.

pytest-xdist gives each of its processes a whole group at a time. Tests that share a control plane or an installation of
the chart are one group, so that each of these is made once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.cluster.settings import KUBERNETES_VERSIONS, kubernetes_version

if TYPE_CHECKING:
    from xdist.remote import Producer

# These start control planes for themselves.
_ALONE = ("test_stories.py", "test_api_server_restart.py")


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out groups in the order in which their first tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the group of a test: its file, or for contract tests the Kubernetes version that they share."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/programs/"):
        return nodeid
    if not file.startswith("tests/contract/") or file.endswith(_ALONE):
        return file
    version = next((version for version in KUBERNETES_VERSIONS if version in nodeid), kubernetes_version())
    return f"contract {version}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Have groups handed out where pytest is told ``--dist loadscope``."""
    return Groups(config, log) if config.option.dist == "loadscope" else None
