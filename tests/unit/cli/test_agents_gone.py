"""A node whose agent is gone stays visible to every command while claims hold its GPUs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dradriver.api.base.allocating_driver import NVIDIA
from dradriver.api.base.allocating_driver import bound as ledger
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import DAEMON_SETS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.serving import Served, served
from tests.unit.cli.test_serve import pieces
from tests.unit.cli.test_verify import DENIED, OURS, REVIEWS, part

GONE = "agent gone"


def unpublish(cluster: GpuCluster, node: str) -> None:
    """Delete a node's slices of this driver, as the kubelet does once the plugin has been away for 30 s."""
    for piece in cluster.all(RESOURCE_SLICES):
        if piece["spec"]["pool"]["name"] == node and piece["spec"]["driver"] == "gpu.topology":
            cluster.remove(RESOURCE_SLICES, piece["metadata"]["name"])


@pytest.fixture
def cluster() -> GpuCluster:
    """Two nodes, of which n2 has two of its GPUs allocated and no agent any more."""
    made = GpuCluster()
    made.node("n1")
    made.node("n2")
    made.rival("old", "n2", [0, 1])
    unpublish(made, "n2")
    return made


def restored(cluster: GpuCluster) -> None:
    """The agent comes back."""
    cluster.publish("n2", cluster.machines["n2"])


def removed(cluster: GpuCluster) -> None:
    """The node is taken out of the cluster."""
    cluster.remove(NODES, "n2")


def released(cluster: GpuCluster) -> None:
    """The claim's pod has ended."""
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "old", "namespace": "default"}, "status": {}})


def of_another_driver(cluster: GpuCluster) -> None:
    """The devices are another driver's, which nobody of ours chose: the node was never meant to have an agent."""
    claim = cluster.find(RESOURCE_CLAIMS, "old", "default")
    assert claim is not None
    for result in claim["status"]["allocation"]["devices"]["results"]:
        result["driver"] = "gpu.nvidia.com"
    cluster.put(RESOURCE_CLAIMS, claim)


NO_REASON = pytest.mark.parametrize("change", [restored, removed, released, of_another_driver])


async def test_topo_shows_it_with_who_holds_its_gpus(cluster: GpuCluster, shell: CommandLine) -> None:
    shown = (await shell.run("topo --cluster")).stdout
    assert [line.split()[:3] for line in shown.splitlines() if line.startswith("n2")] == [["n2", "agent", "gone"]]
    section = (await shell.run("topo --cluster --detail")).stdout.partition("Node: n2")[2]
    assert "agent gone: the node has no ResourceSlice of gpu.topology, and claims have 2 of its devices" in section
    assert section.count("default/old, a claim without pod") == 2
    first, second = await shell.data("topo --cluster")
    assert (first["node"], "agent" in first) == ("n1", False)
    assert (second["node"], second["agent"], second["free"], second["machine"]) == ("n2", "gone", [], None)
    assert [gpu["used_by"][0]["claim"] for gpu in second["gpus"]] == ["old", "old"]
    assert {gpu["device"] for gpu in second["gpus"]} == {
        resource_slices.device_name(gpu.uuid) for gpu in cluster.machines["n2"].gpus[:2]
    }


async def test_topo_shows_it_alone_and_by_namespace(cluster: GpuCluster, shell: CommandLine) -> None:
    for arguments in (("--node", "n2"), ("-n", "default")):
        (only,) = await shell.data("topo --cluster", *arguments)
        assert only["node"] == "n2"
    assert (await shell.run("topo --cluster", "--node", "n1")).stdout.count("Node: ") == 1
    for output in ("svg", "html"):
        assert GONE in (await shell.run("topo --cluster", "-o", output)).stdout


@NO_REASON
async def test_topo_raises_no_false_alarm(change: Any, cluster: GpuCluster, shell: CommandLine) -> None:
    change(cluster)
    assert GONE not in (await shell.run("topo --cluster")).stdout


async def test_topo_says_so_if_nodes_may_not_be_read(cluster: GpuCluster, shell: CommandLine) -> None:
    shell.api.fail(times=math.inf, path="/nodes$", status=403, reason="Forbidden")
    result = await shell.run("topo --cluster")
    assert result.exit_code == 0
    assert "warning: claims have GPUs of n2, which have no slices: agent gone, or node removed?" in result.stderr


async def test_free_says_so(cluster: GpuCluster, shell: CommandLine) -> None:
    assert (await shell.data("free"))["agents_gone"] == ["n2"]
    assert "agent gone: n2. Pods use their GPUs" in (await shell.run("free")).stdout


async def test_that_slices_may_not_be_read_is_no_false_alarm(cluster: GpuCluster) -> None:
    async with served(cluster.store, read=False) as made:
        made.api.fail(path=r"/resourceslices$", times=math.inf, status=403, reason="Forbidden", message="by a test")
        assert [key for key in pieces(made) if key.startswith("node/")] == []


async def test_that_every_agent_is_gone_is_seen(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.rival("young", "n1", [0])
    unpublish(cluster, "n1")
    shown = (await shell.run("topo --cluster")).stdout
    assert [line.split()[:3] for line in shown.splitlines() if line[:2] in ("n1", "n2")] == [
        ["n1", "agent", "gone"],
        ["n2", "agent", "gone"],
    ]
    async with served(cluster.store) as made:
        assert {key for key in pieces(made) if key.startswith("node/")} == {"node/n1", "node/n2"}


@NO_REASON
async def test_free_raises_no_false_alarm(change: Any, cluster: GpuCluster, shell: CommandLine) -> None:
    change(cluster)
    assert "agents_gone" not in await shell.data("free")


@pytest.fixture
def asked(shell: CommandLine) -> None:
    """The API server answers what verify asks for by POST."""
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":true}}')
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=400, message=DENIED)


VERIFY = pytest.mark.usefixtures("asked")


async def _agents(shell: CommandLine, *arguments: str) -> list[tuple[str, str, str]]:
    result = await shell.run("verify", *arguments, "-o", "json")
    found = json.loads(result.stdout)["findings"]
    return [(one["status"], one["message"], one["cure"]) for one in found if one["check"] == "agents"]


@VERIFY
@pytest.mark.parametrize("arguments", [(), ("n2",)])
async def test_verify_fails(arguments: tuple[str, ...], cluster: GpuCluster, shell: CommandLine) -> None:
    ((status, said, cure),) = await _agents(shell, *arguments)
    assert status == "FAIL"
    assert said.startswith("n2: agent gone: ")
    assert "default/old" in said
    assert f"kubectl -n {OURS} describe daemonset" in cure
    cluster.put(PODS, part("node", "n2"))
    ((_, _, cure),) = await _agents(shell, *arguments)
    assert f"kubectl -n {OURS} logs node-n2 -c node" in cure


@VERIFY
@NO_REASON
async def test_verify_raises_no_false_alarm(change: Any, cluster: GpuCluster, shell: CommandLine) -> None:
    change(cluster)
    assert [status for status, _, _ in await _agents(shell)] == ["PASS"]


@VERIFY
async def test_verify_names_five_nodes_and_counts_the_others(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(3, 9):
        cluster.node(f"n{number}")
        cluster.rival(f"old-{number}", f"n{number}", [0])
        unpublish(cluster, f"n{number}")
    found = await _agents(shell)
    assert [said.split(":")[0] for _, said, _ in found] == [
        *(f"n{number}" for number in range(2, 7)),
        "the same on 2 more nodes",
    ]


@VERIFY
async def test_verify_compares_with_what_the_daemonset_wants(cluster: GpuCluster, shell: CommandLine) -> None:
    labels = {"app.kubernetes.io/component": "node", "app.kubernetes.io/part-of": "gpu-topology"}
    made = {"metadata": {"name": "node", "namespace": OURS, "labels": labels}}
    cluster.put(PODS, part("node", "n1"))
    for wanted, status in ((1, "PASS"), (2, "FAIL")):
        cluster.put(DAEMON_SETS, made | {"status": {"desiredNumberScheduled": wanted}})
        found = json.loads((await shell.run("verify", "-o", "json")).stdout)["findings"]
        (said,) = [one for one in found if one["check"] == "node"]
        assert said["status"] == status
    assert said["message"] == "1 of 2 pods that the DaemonSet wants is ready"


@VERIFY
async def test_verify_says_what_it_may_not_read(cluster: GpuCluster, shell: CommandLine) -> None:
    shell.api.fail(times=math.inf, path="/(resourceclaims|daemonsets)$", status=403, reason="Forbidden")
    found = json.loads((await shell.run("verify", "-o", "json")).stdout)["findings"]
    said = [(one["status"], one["message"]) for one in found if "is not known: " in one["message"]]
    assert [status for status, _ in said] == ["WARN", "WARN"]
    assert "resourceclaims" in said[0][1]
    assert "daemonsets" in said[1][1]
    assert ("WARN", "the version of the API server is not known") in [(one["status"], one["message"]) for one in found]


@VERIFY
async def test_next_to_nvidias_driver_a_claim_that_we_chose_tells(shell: CommandLine, cluster: GpuCluster) -> None:
    """NVIDIA's driver has devices on the node still: our agent alone is gone, and verify says so."""
    for name in ("n1", "n2"):
        cluster.remove(NODES, name)
        unpublish(cluster, name)
    cluster.remove(RESOURCE_CLAIMS, "old", "default")
    with ledger(NVIDIA):
        addon = AddOnCluster()
        addon.store = cluster.store
        addon.restart()
        addon.node("n1")
        addon.node("n2")
        addon.pod("ours", 2)
        await run_all(addon)
    node, _ = addon.gpus("ours")
    assert [status for status, _, _ in await _agents(shell)] == ["PASS"]
    unpublish(cluster, node)
    ((status, said, _),) = await _agents(shell)
    assert (status, said.split(":")[0]) == ("FAIL", node)
    assert (await shell.data("free"))["agents_gone"] == [node]
    assert [one["node"] for one in await shell.data("topo --cluster") if one.get("agent") == "gone"] == [node]


async def _until(made: Served, key: str, value: Any) -> None:
    while pieces(made).get("node/n2", {}).get(key) != value:
        await made.page.feed.news(made.page.feed.version)


@pytest.mark.slow
async def test_the_page_keeps_its_tile_and_says_when_the_agent_is_back(cluster: GpuCluster) -> None:
    async with served(cluster.store) as made:
        told = pieces(made)
        assert (told["node/n2"]["closed"], told["node/n2"]["gpus"]) == (GONE, "aa")
        assert told["node/n2"]["who"] == [["default/old, a claim without pod", [0, 1]]]
        assert (told["summary"]["nodes"], told["summary"]["gone"]) == (2, 1)
        assert [GONE, {"a": 2}] in told["summary"]["products"]
        assert GONE in told["shown/health"]
        assert made.page.details is not None
        detail = made.page.details.node("n2")
        assert detail is not None
        assert detail["title"] == "n2: agent gone"
        restored(cluster)
        await _until(made, "closed", "")
        unpublish(cluster, "n2")
        await _until(made, "closed", GONE)
        released(cluster)
        await _until(made, "closed", None)
