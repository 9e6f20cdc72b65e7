"""``gputopo explain`` of a pod for which others have to end."""

from __future__ import annotations

import pytest

from tests.fakes.commands import CommandLine
from tests.fakes.preempting import Contested


@pytest.fixture
def cluster() -> Contested:
    return Contested()


async def test_whom_it_waits_for_is_said(cluster: Contested, shell: CommandLine) -> None:
    cluster.node("a")
    await cluster.run(("low", 8, 0))
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    found = await shell.data("explain me")
    assert "preemption of default/low (priority 0), which ends by" in found["reason"]
