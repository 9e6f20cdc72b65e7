"""Kueue's Topologies: whoever has one has written down the network's levels already."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.cluster.gpus.kueue_topologies import read_topology
from dradriver.kube.reflector import Change
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster

RACK, BLOCK = "example.com/rack", "example.com/block"


def topology(*labels: str, name: str = "default") -> dict[str, Any]:
    levels = [{"nodeLabel": label} for label in labels]
    return {"metadata": {"name": name, "uid": "u", "resourceVersion": "1"}, "spec": {"levels": levels}}


def read(found: dict[str, Any]) -> Any:
    return read_topology(msgspec.Raw(msgspec.json.encode(found)))


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        ((BLOCK, RACK, "kubernetes.io/hostname"), (RACK, BLOCK)),
        ((BLOCK, RACK), (RACK, BLOCK)),
        (("kubernetes.io/hostname",), None),
        ((), None),
        (("x" * 318,), None),
        (("",), None),
        (tuple(f"example.com/{i}" for i in range(17)), None),
    ],
)
def test_its_levels_are_read_nearest_first(labels: tuple[str, ...], keys: tuple[str, ...] | None) -> None:
    found = read(topology(*labels))
    assert (None if found is None else found.keys) == keys


def test_nulls_are_nothing() -> None:
    assert read({"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}, "spec": {"levels": None}}) is None
    assert read({"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}, "spec": None}) is None


async def test_gangs_are_placed_by_the_levels_of_a_topology_that_the_nodes_have() -> None:
    cluster = GpuCluster()
    for number, node in enumerate("abcdef"):
        cluster.node(node, labels={RACK: f"rack-{number % 2}", BLOCK: "block"})
    picture = cluster.worker.picture
    for other in (topology("example.com/nobody", name="a"), topology(BLOCK, RACK, name="b")):
        picture.topology_changed(Change(("", other["metadata"]["name"]), None, read(other)))
    pods = gang(cluster, 3)
    await cluster.settle()
    assert {cluster.gpus(pod)[0] for pod in pods} in ({"a", "c", "e"}, {"b", "d", "f"})
    assert cluster.note(pods[0], "gang-reach") == "rack"


async def test_levels_of_the_policies_file_stand_above_a_topology() -> None:
    cluster = GpuCluster()
    for number, node in enumerate("abcdef"):
        cluster.node(node, labels={RACK: f"rack-{number % 2}", BLOCK: f"block-{number // 3}"})
    picture = cluster.worker.picture
    picture.topology_changed(Change(("", "b"), None, read(topology(RACK))))
    picture.levels_changed((BLOCK,), {})
    pods = gang(cluster, 3)
    await cluster.settle()
    assert {cluster.gpus(pod)[0] for pod in pods} in ({"a", "b", "c"}, {"d", "e", "f"})


@pytest.mark.parametrize(("gbps", "starts"), [({}, False), ({BLOCK: 100.0}, True), ({BLOCK: 40.0}, False)])
async def test_what_a_wider_level_carries_the_policies_file_says(gbps: dict[str, float], starts: bool) -> None:
    cluster = GpuCluster()
    for number, node in enumerate("abc"):
        cluster.node(node, "hgx-h100", labels={RACK: f"rack-{number}", BLOCK: "block"})
    cluster.worker.picture.levels_changed((RACK, BLOCK), gbps)
    for name in ("p0", "p1"):
        cluster.pod(name, 8, wishes={"gang": "train", "gang-size": "2", "min-network-bandwidth": "50"})
    await cluster.settle()
    assert (cluster.claim("p0") is not None) == starts
