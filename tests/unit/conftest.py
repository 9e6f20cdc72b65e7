"""``gputopo`` against a cluster in memory; a module whose cluster is another one says so by a fixture of that name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dradriver.api.base.allocating_driver import NVIDIA, bound
from tests.fakes.commands import CommandLine, command_line
from tests.fakes.gpucluster import GpuCluster


@pytest.fixture
def cluster() -> GpuCluster:
    return GpuCluster()


@pytest.fixture
def addon() -> Iterator[None]:
    """NVIDIA's driver hands out the GPUs for the length of a test."""
    with bound(NVIDIA):
        yield


@pytest.fixture
async def shell(cluster: GpuCluster, tmp_path: Path) -> AsyncIterator[CommandLine]:
    async with command_line(cluster.store, tmp_path) as made:
        yield made
