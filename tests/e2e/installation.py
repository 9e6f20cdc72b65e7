"""The chart on the tests' cluster: only settings that differ from those in force are installed."""

from __future__ import annotations

from typing import Any

from tests import deploy
from tests.cluster import Cluster


class Installation:
    """The release of the chart on one cluster.

    Attributes:
        cluster: The cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._in_force: tuple[tuple[str, ...], dict[str, Any]] | None = None

    def install(self, *settings: str, **how: Any) -> None:
        """Install the chart as ``deploy.install`` does, unless it is installed with exactly these settings."""
        if self._in_force != (settings, how):
            self._in_force = None
            deploy.install(self.cluster, *settings, **how)
            self._in_force = settings, how

    def forget(self) -> None:
        """Have the next installation done in any case: somebody else has changed the release."""
        self._in_force = None
