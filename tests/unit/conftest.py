"""``gputopo`` against a cluster in memory; a module whose cluster is another one says so by a fixture of that name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.commands import CommandLine, command_line
from tests.fakes.gpucluster import GpuCluster


@pytest.fixture
def cluster() -> GpuCluster:
    return GpuCluster()


@pytest.fixture
async def shell(cluster: GpuCluster, tmp_path: Path) -> AsyncIterator[CommandLine]:
    async with command_line(cluster.store, tmp_path) as made:
        yield made
