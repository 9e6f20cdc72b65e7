"""Which claims of gated pods are kept, that a killed controller or a conflict has left, and which are made anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Amount
from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.api.vocabulary.container_requests import Asked
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.commands import command_line
from tests.fakes.gpucluster import GpuCluster, Killed, note

SHARED = Mode(shared="time-slicing")
DYNAMIC = Mode(mig="dynamic")
PREFERS_NVLINK = {names.PREFERRED: "nvlink"}
A_QUARTER_EACH = {"x": Amount(cores=25), "y": Amount(cores=25)}


async def left(cluster: GpuCluster, asked: Asked | Mapping[str, Asked], **changes: Any) -> dict[str, Any]:
    """Return the claim of pod ``p``, whose controller is killed before it lifts the gate; the next has not begun."""
    cluster.client.writes.clear()
    cluster.pod("p", asked, **changes)
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    cluster.restart()
    return claim


def asks(cluster: GpuCluster, asked: Asked | Mapping[str, Asked], wishes: Mapping[str, str] | None = None) -> None:
    """Let the pod ask for something else."""
    pod = cluster.get_pod("p")
    counts = asked if isinstance(asked, Mapping) else {"main": asked}
    pod["metadata"]["annotations"][names.REQUEST] = note(counts, wishes or {})
    cluster.put(PODS, pod)


async def kept(cluster: GpuCluster, claim: dict[str, Any]) -> bool:
    """Return whether the next controller keeps a claim; the pod is lifted with it, or with another, and bound."""
    await cluster.settle()
    now = cluster.claim("p")
    assert now is not None
    cluster.schedule()
    await cluster.settle()
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"
    return bool(now["metadata"]["uid"] == claim["metadata"]["uid"])


def hold(cluster: GpuCluster, name: str, gpu: int, profile: str, start: int, size: int) -> None:
    """Let somebody else's claim have a MIG slice."""
    device = {
        "driver": names.DRIVER,
        "pool": "a",
        "device": resource_slices.device_name(cluster.machines["a"].gpus[gpu].uuid),
    }
    device["shareID"] = name
    consumed = {"memorySlices": str(size), "computeSlices": profile[0]}
    told = device | {"data": {"type": "mig", "profile": profile, "placement": start}}
    given = {"devices": {"results": [device | {"request": "main", "consumedCapacity": consumed}]}}
    status = {"allocation": given, "devices": [told]}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "default"}, "status": status})


@pytest.mark.parametrize(
    ("asked", "mode", "taken"),
    [
        (2, Mode(), [0, 1, 2, 3, 4, 6]),
        (Amount(cores=25), SHARED, [0, 1, 2, 3]),
        (("1g.10gb",), DYNAMIC, [0, 1, 2, 3]),
        ({"x": ("1g.10gb",), "y": ("2g.20gb",)}, Mode(mig="placements"), [0, 1, 2, 3]),
    ],
)
async def test_one_is_kept_though_a_better_place_has_become_free(
    asked: Asked | dict[str, Asked], mode: Mode, taken: list[int]
) -> None:
    cluster = GpuCluster()
    cluster.node("a", "dgx1-v100" if mode == Mode() else "hgx-h100", mode=mode)
    cluster.rival("rival", "a", taken)
    claim = await left(cluster, asked)
    cluster.remove(RESOURCE_CLAIMS, "rival", "default")
    assert await kept(cluster, claim)
    assert cluster.client.writes == [("patch", "p")]
    assert cluster.note("p", "allocated")


@pytest.mark.parametrize(
    ("fill", "asked", "mode"),
    [
        (Amount(cores=70), A_QUARTER_EACH, SHARED),
        (("4g.40gb",), {"x": ("3g.40gb",), "y": ("3g.40gb",)}, DYNAMIC),
        (("4g.40gb",), ("3g.40gb", "3g.40gb"), Mode(mig="placements")),
    ],
)
async def test_parts_on_several_gpus_are_kept_though_they_would_fit_on_one_now(
    fill: Asked, asked: Asked | dict[str, Asked], mode: Mode
) -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=mode)
    cluster.rival("rival", "a", range(2, 8))
    for name in ("f", "g"):
        cluster.pod(name, fill)
        await cluster.settle()
        cluster.schedule()
        await cluster.settle()
    claim = await left(cluster, asked)
    assert cluster.gpus("p")[1] == [0, 1]
    cluster.remove(PODS, "f", "default")
    cluster.collect()
    assert await kept(cluster, claim)


async def test_one_whose_slice_cannot_be_made_next_to_anothers_is_made_again() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=DYNAMIC)
    cluster.rival("rival", "a", range(2, 8))
    for gpu in (0, 1):
        hold(cluster, f"large-{gpu}", gpu, "4g.40gb", 0, 4)
        hold(cluster, f"small-{gpu}", gpu, "2g.20gb", 4, 2)
    claim = await left(cluster, {"x": ("1g.10gb+me",), "y": ("1g.10gb",)})
    containers = json.loads(claim["metadata"]["annotations"][names.CHOICE])["containers"]
    (first,), (second,) = containers
    assert first["gpu"] != second["gpu"]
    for gpu in (0, 1):
        cluster.remove(RESOURCE_CLAIMS, f"large-{gpu}", "default")
    hold(cluster, "media", first["gpu"], "1g.10gb+me", 0, 1)  # a GPU has one such slice
    assert not await kept(cluster, claim)


@pytest.mark.parametrize(
    ("asked", "mode", "instead"),
    [
        (Amount(cores=25), SHARED, Amount(cores=30)),
        (("1g.10gb",), DYNAMIC, ("2g.20gb",)),
        ({"x": 3, "y": 1}, Mode(), {"x": 1, "y": 3}),
        (2, SHARED, Amount(cores=30)),
        (Amount(cores=30), SHARED, 2),
    ],
)
async def test_one_is_made_again_when_the_pod_asks_for_other_sizes(
    asked: Asked | dict[str, Asked], mode: Mode, instead: Asked | dict[str, Asked]
) -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=mode)
    claim = await left(cluster, asked)
    asks(cluster, instead)
    assert not await kept(cluster, claim)


@pytest.mark.parametrize(("before", "after"), [({}, PREFERS_NVLINK), (PREFERS_NVLINK, {})])
async def test_one_is_made_again_when_what_the_pod_prefers_has_changed(
    before: dict[str, str], after: dict[str, str]
) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.rival("rival", "a", [1, 2, 3, 4, 6, 7])  # 0 and 5 have no link
    claim = await left(cluster, 2, wishes={key.removeprefix(names.PREFIX): value for key, value in before.items()})
    asks(cluster, 2, after)
    assert not await kept(cluster, claim)
    assert cluster.note("p", "fallback") == after.get(names.PREFERRED)


async def test_one_is_made_again_when_nccl_is_to_be_told_something_else() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    claim = await left(cluster, 2)
    asks(cluster, 2, {names.NCCL: "off"})
    assert not await kept(cluster, claim)


async def test_one_is_made_again_when_its_gpus_have_lost_their_link() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    claim = await left(cluster, 2)
    pair, machine = set(cluster.gpus("p")[1]), cluster.machines["a"]
    links = tuple(
        tuple(0 if {one, other} == pair else count for other, count in enumerate(row))
        for one, row in enumerate(machine.links)
    )
    cluster.publish("a", msgspec.structs.replace(machine, links=links))
    assert not await kept(cluster, claim)
    assert cluster.note("p", "level") == "nvlink"


async def test_one_is_kept_when_its_gpus_have_other_numbers() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.rival("rival", "a", [0, 1, 2, 3])
    claim = await left(cluster, 2)
    fewer = cluster.machines["a"].subset(range(1, 8))
    gpus = tuple(msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(fewer.gpus))
    cluster.publish("a", msgspec.structs.replace(fewer, gpus=gpus))
    assert await kept(cluster, claim)


@pytest.mark.parametrize("changes", [{"gpus": [0, 9]}, {"gpus": [0]}, {"ring": [0, 9]}, {"node": "b"}])
async def test_one_whose_choice_was_tampered_with_is_made_again(changes: dict[str, Any]) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    claim = await left(cluster, 2)
    told = json.loads(claim["metadata"]["annotations"][names.CHOICE]) | changes
    claim["metadata"]["annotations"][names.CHOICE] = json.dumps(told)
    cluster.put(RESOURCE_CLAIMS, claim)
    assert not await kept(cluster, claim)


async def test_explain_says_what_becomes_of_it(tmp_path: Path) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    claim = await left(cluster, 2)
    async with command_line(cluster.store, tmp_path) as shell:
        assert "is about to remove the scheduling gate" in (await shell.data("explain p"))["reason"]
        cluster.rival("rival", "a", cluster.gpus("p")[1])
        assert "is about to create it again" in (await shell.data("explain p"))["reason"]
    assert not await kept(cluster, claim)
