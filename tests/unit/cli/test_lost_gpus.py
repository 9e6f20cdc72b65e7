"""A GPU that fell off the bus leaves its place empty: in ``topo``, in ``verify`` and on the page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import cast

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.objects import Taint
from dradriver.api.slices import lost_gpus, resource_slices
from dradriver.cli.cluster import cluster_view
from dradriver.cli.page import page_pieces
from dradriver.cli.page.live_cluster import Live, Tile
from dradriver.cluster.views.gone_node_views import GoneNode
from dradriver.cluster.views.node_views import LostView, NodeView
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node.discovery.simulated_machine import without
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.serving import served
from tests.unit.cli.test_serve import pieces
from tests.unit.cli.test_verify import DENIED, REVIEWS


def lose(cluster: GpuCluster, node: str, *indices: int) -> None:
    """Publish a node without some of its GPUs, as its agent does once they are lost."""
    whole = cluster.machines[node]
    built = resource_slices.build(without(whole, set(map(str, indices))), node=node, node_uid="n")
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
    assert f"lost: GPU2 ({gpu.pci}, {gpu.uuid})" in (await shell.run("topo --cluster --node n1")).stdout
    (node,) = await shell.data("topo --cluster")
    assert node["lost"][0] == {"index": 2, "pci": gpu.pci, "uuid": gpu.uuid, "used_by": []}
    assert (len(node["gpus"]), len(node["lost"])) == (6, 2)
    cluster.publish("n1", cluster.machines["n1"])
    (node,) = await shell.data("topo --cluster")
    assert "lost" not in node


async def test_topo_and_health_count_a_lost_gpu_and_name_it_with_its_pod(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.rival("training", "n1", [2])
    gpu = cluster.machines["n1"].gpus[2]
    shown = await shell.run("topo --cluster")
    row = next(line for line in shown.stdout.splitlines() if line.startswith("n1 "))
    assert re.split("  +", row)[2:5] == ["8", "5", "2"]
    assert row.endswith("default/old, a claim without pod, default/training, a claim without pod")
    assert (
        f"lost: n1 GPU2 ({gpu.pci}, {gpu.uuid}), used by default/training, a claim without pod. "
        "Repair: gputopo health\n" in shown.stdout
    )
    assert "1 node, 8 GPUs, 5 free, 2 unhealthy. " in shown.stdout
    assert "does not exist" not in shown.stderr
    (node,) = await shell.data("topo --cluster -n default")
    assert [holder["claim"] for holder in node["lost"][0]["used_by"]] == ["training"]
    detail = (await shell.run("topo --cluster --node n1")).stdout
    assert f"lost: GPU2 ({gpu.pci}, {gpu.uuid}), used by default/training, a claim without pod. " in detail

    result = await shell.run("health")
    assert result.stdout.startswith("2 of 8 GPUs on 1 node are unhealthy\n")
    assert "does not exist" not in result.stderr
    found = json.loads((await shell.run("health -o json")).stdout)
    assert [(fault["index"], fault["used_by"], fault["namespaces"]) for fault in found["faults"]] == [
        (2, ["default/training, a claim without pod"], ["default"]),
        (5, [], []),
    ]
    async with served(cluster.store) as made:
        assert "default/training, a claim without pod" in pieces(made)["shown/health"]


@pytest.mark.slow
async def test_a_gpu_that_only_a_claim_knows_is_lost(cluster: GpuCluster, shell: CommandLine) -> None:
    """The agent's table of slots is gone, and a pod still has the GPU."""
    cluster.rival("training", "n1", [2])
    uuid = cluster.machines["n1"].gpus[2].uuid
    forge(cluster, "[]")
    (node,) = await shell.data("topo --cluster")
    assert [(gpu["index"], gpu["uuid"]) for gpu in node["lost"]] == [(None, uuid.lower())]
    shown = await shell.run("topo --cluster")
    assert f"lost: n1 a GPU ({uuid.lower()}), used by default/training, a claim without pod. " in shown.stdout
    assert "1 node, 7 GPUs, 5 free, 1 unhealthy. " in shown.stdout
    assert (await shell.run("health")).stdout.startswith("1 of 7 GPUs on 1 node is unhealthy\n")
    async with served(cluster.store) as made:
        assert pieces(made)["node/n1"]["gpus"] == "afffffm"
        assert pieces(made)["unread"] == []
    cluster.remove(RESOURCE_CLAIMS, "training", "default")
    assert "1 node, 6 GPUs, 5 free. " in (await shell.run("topo --cluster")).stdout
    assert (await shell.run("health")).stdout.startswith("0 of 6 GPUs on 1 node are unhealthy\n")


async def test_the_number_of_a_gpu_that_only_a_claim_knows_is_that_of_its_placement(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.publish("n1", cluster.machines["n1"])
    cluster.pod("train", 7)
    await cluster.settle()
    cluster.schedule()
    lose(cluster, "n1", 2)
    forge(cluster, "[]")
    (node,) = await shell.data("topo --cluster")
    uuid = cluster.machines["n1"].gpus[2].uuid
    assert [(gpu["index"], gpu["uuid"], gpu["used_by"][0]["pods"]) for gpu in node["lost"]] == [(2, uuid, ["train"])]


async def verified(shell: CommandLine) -> list[tuple[str, str]]:
    """Return what ``verify`` says of lost GPUs."""
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":true}}')
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=400, message=DENIED)
    found = json.loads((await shell.run("verify", "-o", "json")).stdout)["findings"]
    return [(one["status"], one["message"]) for one in found if one["check"] == "lost-gpus"]


async def test_verify_warns(cluster: GpuCluster, shell: CommandLine) -> None:
    said = await verified(shell)
    gpus = cluster.machines["n1"].gpus
    assert said == [
        ("WARN", f"n1: GPU{gpu.index} ({gpu.pci}, {gpu.uuid}) is not on the node any more")
        for gpu in (gpus[2], gpus[5])
    ]


async def test_the_page_shows_an_empty_cell_where_each_was(cluster: GpuCluster) -> None:
    async with served(cluster.store) as made:
        told = pieces(made)
        assert told["node/n1"]["gpus"] == "afmffmff"
        assert told["node/n1"]["unhealthy"] == 2
        assert told["summary"]["products"] == [[cluster.machines["n1"].product, {"a": 1, "f": 5, "m": 2}]]
        assert told["shown/health"].count("lost: GPU") == 2
        assert "2 GPUs are out of service" in told["shown/health"]


@pytest.mark.parametrize("text", ["", "{", "null", '[{"index": "x"}]', "[" * 100_000, '[{"index":0,"pci":"\\ud800"'])
async def test_a_damaged_annotation_is_no_lost_gpu(text: str, cluster: GpuCluster, shell: CommandLine) -> None:
    forge(cluster, text)
    (node,) = await shell.data("topo --cluster")
    assert "lost" not in node


def forge(cluster: GpuCluster, text: str) -> None:
    """Have the annotation of a node's slice say this."""
    piece = cluster.find(RESOURCE_SLICES, resource_slices.slice_name(0, "n1"))
    assert piece is not None
    piece["metadata"]["annotations"][names.LOST_GPUS] = text
    cluster.put(RESOURCE_SLICES, piece)


GOOD = {"index": 2, "pci": "0000:3b:00.0", "uuid": "GPU-lost"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        {"index": 10**30},
        {"index": 128},
        {"index": -1},
        {"pci": "0" * 65},
        {"uuid": "u" * 65},
        {"since": -1},
        {"since": "yesterday"},
        {"uuid": None},
    ],
)
async def test_an_entry_out_of_bounds_is_left_out_and_the_others_stay(
    bad: dict[str, object], cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n2")
    forge(cluster, json.dumps([{**GOOD, "uuid": "GPU-other", **bad}, GOOD]))
    node, other = await shell.data("topo --cluster")
    assert node["lost"] == [{**GOOD, "used_by": []}]
    assert "lost" not in other
    async with served(cluster.store) as made:
        told = pieces(made)
        assert (told["node/n1"]["gpus"], told["node/n2"]["gpus"]) == ("afmffff", "ffffffff")
        assert told["unread"] == []


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["\x1b[31m" * 12, "\u202e" * 64, "a\nb"])
async def test_odd_characters_reach_no_terminal_and_stop_nothing(
    odd: str, cluster: GpuCluster, shell: CommandLine
) -> None:
    forge(cluster, json.dumps([{"index": 1, "pci": odd, "uuid": odd}]))
    result = await shell.run("topo --cluster")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert odd not in result.stdout
    async with served(cluster.store) as made:
        assert pieces(made)["unread"] == []


async def test_a_gpu_that_is_there_is_not_lost(cluster: GpuCluster, shell: CommandLine) -> None:
    """An older agent, as after a rollback, leaves the annotation as it is when a GPU is back."""
    machine = cluster.machines["n1"]
    cluster.publish("n1", machine)
    forge(cluster, json.dumps([{"index": 2, "pci": machine.gpus[2].pci, "uuid": machine.gpus[2].uuid}]))
    (node,) = await shell.data("topo --cluster")
    assert "lost" not in node
    async with served(cluster.store) as made:
        assert pieces(made)["node/n1"]["gpus"] == "afffffff"
    assert await verified(shell) == []


async def test_a_gpu_that_is_named_twice_is_lost_once(cluster: GpuCluster, shell: CommandLine) -> None:
    forge(cluster, json.dumps([GOOD, {**GOOD, "index": 3}]))
    (node,) = await shell.data("topo --cluster")
    assert node["lost"] == [{**GOOD, "used_by": []}]


def test_a_node_that_cannot_be_shown_leaves_the_others_shown(cluster: GpuCluster) -> None:
    """Each update of the page passes all nodes through here, so an error of one of them must not end it."""
    cluster.node("n2")
    found, _ = cluster_view.views([msgspec.convert(piece, ResourceSlice) for piece in cluster.all(RESOURCE_SLICES)], ())
    first, second = found
    odd = msgspec.structs.replace(first, lost=(cast("LostView", "no entry"),))
    live = Shown({"n1": odd, "n2": second})
    told = page_pieces.node_pieces(cast("Live", live), ("n1", "n2"))
    assert told["n1"] is None
    assert told["n2"] is not None
    assert json.loads(told["n2"])["gpus"] == "ffffffff"
    assert live.left_out == ["n1"]


@pytest.mark.parametrize(
    ("blocked", "taints", "letter", "unhealthy"),
    [
        ("tainted", ("mode-changes",), "b", 0),
        ("tainted", ("mode-changes", "xid"), "u", 1),
        ("tainted", ("xid",), "u", 1),
        ("in MIG mode", (), "b", 0),
        ("in MIG mode, with 1g.10gb (tainted)", ("xid",), "u", 1),
        ("not in the node's slices", (), "u", 1),
    ],
)
def test_a_gpu_that_changes_its_mode_is_not_unhealthy(
    cluster: GpuCluster, blocked: str, taints: tuple[str, ...], letter: str, unhealthy: int
) -> None:
    found, _ = cluster_view.views([msgspec.convert(piece, ResourceSlice) for piece in cluster.all(RESOURCE_SLICES)], ())
    keys = tuple(Taint(key=names.PREFIX + key, effect="NoSchedule") for key in taints)
    changed = {"holders": (), "blocked": blocked, "taints": keys, "is_shut": bool(keys)}
    gpus = (msgspec.structs.replace(found[0].gpus[0], **changed), *found[0].gpus[1:])
    live = Shown({"n1": msgspec.structs.replace(found[0], gpus=gpus, lost=())})
    piece = page_pieces.node_piece(cast("Live", live), "n1")
    assert piece is not None
    told = json.loads(piece)
    assert (told["gpus"][0], told["unhealthy"]) == (letter, unhealthy)


class Shown:
    """What the page asks of the cluster about nodes."""

    def __init__(self, views: Mapping[str, NodeView]) -> None:
        self.views = views
        self.gone: Mapping[str, GoneNode] = {}
        self.tiles: dict[str, Tile] = {}
        self.left_out: list[str] = []

    def closed(self, name: str) -> str:
        return ""

    def states(self, name: str) -> None:
        return None

    def tenant(self, namespace: str) -> str:
        return namespace

    def node(self, name: str) -> None:
        return None

    def leave_out(self, name: str, error: Exception) -> None:
        self.left_out.append(name)
