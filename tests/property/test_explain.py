"""What ``gputopo explain`` says would help does help, and nothing smaller would."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import combinations
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator import Constraint, NoPlaceError, Whole, choose
from dradriver.kube.resources import RESOURCE_CLAIMS
from dradriver.topology.machine import Machine
from tests.effort import examples
from tests.fakes.commands import command_line
from tests.fakes.gpucluster import GpuCluster

NODES = {"a": "dgx1-v100", "b": "rtx4090-x8"}


def places(machine: Machine, free: frozenset[int], request: Whole) -> bool:
    try:
        choose(machine, sorted(free), request)
    except NoPlaceError:
        return False
    return True


def fewest(machine: Machine, free: frozenset[int], request: Whole) -> int | None:
    """Return how many held GPUs must become free for a place, by trying all; None where none would do."""
    held = sorted({gpu.index for gpu in machine.gpus} - free)
    for count in range(len(held) + 1):
        if any(places(machine, free | set(some), request) for some in combinations(held, count)):
            return count
    return None


@st.composite
def holdings(draw: st.DrawFn) -> dict[str, list[frozenset[int]]]:
    """Claims of each node: disjoint sets of its GPUs."""
    found: dict[str, list[frozenset[int]]] = {}
    for node in NODES:
        owner = draw(st.lists(st.integers(0, 3), min_size=8, max_size=8))  # 0: free
        groups = (frozenset(i for i, one in enumerate(owner) if one == number) for number in (1, 2, 3))
        found[node] = [group for group in groups if group]
    return found


@given(
    holdings(),
    st.integers(1, 6),
    st.sampled_from([(), (Constraint.NVLINK,), (Constraint.SAME_NUMA,), (Constraint.SAME_PCIE_SWITCH,)]),
)
@settings(max_examples=examples(40), deadline=None)
def test_what_would_help_is_the_least_that_would(
    held: dict[str, list[frozenset[int]]], gpus: int, required: tuple[Constraint, ...]
) -> None:
    asyncio.run(_check(held, gpus, required))


async def _check(held: dict[str, list[frozenset[int]]], gpus: int, required: tuple[Constraint, ...]) -> None:
    cluster = GpuCluster()
    for node, profile in NODES.items():
        cluster.node(node, profile)
        for number, some in enumerate(held[node]):
            cluster.rival(f"{node}-{number}", node, sorted(some))
    wishes = {"required": ",".join(one.value for one in required)} if required else {}
    cluster.pod("p", gpus, wishes=wishes)
    with tempfile.TemporaryDirectory() as folder:
        async with command_line(cluster.store, Path(folder)) as shell:
            found = await shell.data("explain p")
    await cluster.settle()
    request = Whole(containers=(gpus,), required=required)
    least = {
        node: fewest(cluster.machines[node], frozenset(range(8)).difference(*held[node]), request) for node in NODES
    }
    possible = {node: count for node, count in least.items() if count is not None}
    if 0 in possible.values():
        assert cluster.gpus("p") == (found["place"]["node"], found["place"]["gpus"])
        assert found["helps"] == []
        return
    assert found["reason"] == cluster.note("p", "reason")
    assert {one["node"]: sum(len(o["gpus"]) for o in one["owners"]) for one in found["helps"]} == possible
    if found["helps"]:
        for owner in found["helps"][0]["owners"]:
            cluster.remove(RESOURCE_CLAIMS, owner["claim"], "default")
        await cluster.settle()
        assert cluster.gpus("p")[0] == found["helps"][0]["node"]
