"""``gputopo explain`` where AMD's driver hands out the GPUs: as the controller there decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dradriver.api.base.allocating_driver import AMD, bound
from tests.fakes.amdcluster import AmdCluster
from tests.fakes.commands import CommandLine, run_all


@pytest.fixture(autouse=True)
def ledger() -> Iterator[None]:
    with bound(AMD):
        yield


@pytest.fixture
def cluster(ledger: None) -> AmdCluster:
    return AmdCluster()


async def test_a_place_is_the_one_that_the_controller_gives(cluster: AmdCluster, shell: CommandLine) -> None:
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-0-128")
    cluster.pod("next", 4)
    place = (await shell.data("explain next"))["place"]
    assert place["gpus"] == [4, 5, 6, 7]
    await cluster.settle()
    assert cluster.gpus("next") == ("a", place["gpus"])
    cluster.pod("more", 4, wishes={"required": "nvlink"})
    await run_all(cluster)
    found = await shell.data("explain more")
    assert (found["state"], found["reason"]) == ("waits", cluster.note("more", "reason"))
    (owner,) = found["would_help"][0]["owners"]
    assert owner["claim"] == "theirs"
