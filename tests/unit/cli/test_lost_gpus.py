"""A GPU that fell off the bus leaves its place empty: in ``topo``, in ``verify`` and on the page."""

from __future__ import annotations

import json
import math

import pytest

from dradriver.api import lost_gpus, names, slices
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node.discovery.simulated import without
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.serving import served
from tests.unit.cli.test_serve import pieces
from tests.unit.cli.test_verify import DENIED, REVIEWS


def lose(cluster: GpuCluster, node: str, *indices: int) -> None:
    """Publish a node without some of its GPUs, as its agent does once they are lost."""
    whole = cluster.machines[node]
    built = slices.build(without(whole, set(map(str, indices))), node=node, node_uid="n")
    lost_gpus.note(built, [lost_gpus.of(whole.gpus[index]) for index in indices])
    for piece in built:
        piece["spec"]["pool"]["generation"] = 2
        cluster.put(RESOURCE_SLICES, piece)


@pytest.fixture
def cluster() -> GpuCluster:
    """A node of which GPU0 is held, and of which two free GPUs are lost."""
    made = GpuCluster()
    made.node("n1")
    made.rival("old", "n1", [0])
    lose(made, "n1", 2, 5)
    return made


async def test_topo_names_them(cluster: GpuCluster, shell: CommandLine) -> None:
    gpu = cluster.machines["n1"].gpus[2]
    assert f"lost: GPU2 ({gpu.pci}, {gpu.uuid})" in (await shell.run("topo --cluster")).stdout
    (node,) = await shell.data("topo --cluster")
    assert node["lost"][0] == {"index": 2, "pci": gpu.pci, "uuid": gpu.uuid}
    assert (len(node["gpus"]), len(node["lost"])) == (6, 2)
    cluster.publish("n1", cluster.machines["n1"])
    (node,) = await shell.data("topo --cluster")
    assert "lost" not in node


async def test_verify_warns(cluster: GpuCluster, shell: CommandLine) -> None:
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":true}}')
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=400, message=DENIED)
    found = json.loads((await shell.run("verify", "-o", "json")).stdout)["findings"]
    said = [(one["status"], one["said"]) for one in found if one["check"] == "lost-gpus"]
    gpus = cluster.machines["n1"].gpus
    assert said == [
        ("WARN", f"n1: GPU{gpu.index} ({gpu.pci}, {gpu.uuid}) is not on the node any more")
        for gpu in (gpus[2], gpus[5])
    ]


async def test_the_page_shows_an_empty_cell_where_each_was(cluster: GpuCluster) -> None:
    async with served(cluster.store) as made:
        told = pieces(made)
        assert told["node/n1"]["gpus"] == "afmffmff"
        assert told["node/n1"]["ill"] == 2
        assert told["summary"]["products"] == [[cluster.machines["n1"].product, {"a": 1, "f": 5, "m": 2}]]
        assert told["shown/health"].count("lost: GPU") == 2
        assert "2 GPUs are out of service" in told["shown/health"]


@pytest.mark.parametrize("text", ["", "{", "null", '[{"index": "x"}]', "[" * 100_000, '[{"index":0,"pci":"\\ud800"'])
async def test_a_damaged_annotation_is_no_lost_gpu(text: str, cluster: GpuCluster, shell: CommandLine) -> None:
    piece = cluster.find(RESOURCE_SLICES, slices.slice_name(0, "n1"))
    assert piece is not None
    piece["metadata"]["annotations"][names.LOST_GPUS] = text
    cluster.put(RESOURCE_SLICES, piece)
    (node,) = await shell.data("topo --cluster")
    assert "lost" not in node
