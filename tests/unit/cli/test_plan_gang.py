"""``gputopo plan --gang``: where a gang would go in a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dradriver.allocator import Fleet, GangRequest, Whole, place_gang
from dradriver.cli import plan_gang
from dradriver.cli.main import main
from dradriver.kube.resources import KUEUE_TOPOLOGIES
from dradriver.topology import profiles
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster

LEAF, SPINE = "topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-2"


def network(cluster: GpuCluster) -> None:
    for number in range(6):
        labels = {LEAF: f"l{number // 3}", SPINE: "s", "example.com/rack": f"r{number // 2}"}
        cluster.node(f"n{number}", "dgx-h100", labels=labels)


async def test_a_gang_goes_near_each_other(cluster: GpuCluster, shell: CommandLine) -> None:
    network(cluster)
    cluster.rival("old", "n0", [3])
    found = await shell.data("plan", "--gang", "3x8", "--near", "leaf")
    assert (found["network_level"], found["nodes"], found["fallback"]) == ("leaf", ["n3", "n4", "n5"], [])
    assert [pod["node"] for pod in found["pods"]] == found["nodes"]
    assert found["pods"][0]["gpus"] == list(range(8))
    said = (await shell.run("plan", "--gang", "4-8x8", "--near", "preferred leaf")).stdout
    assert "5 pods on 5 nodes of one spine" in said
    assert "near: leaf" in said
    assert "NODE" in said


@pytest.fixture
def racks(tmp_path: Path) -> str:
    """Return a policies file that says what the network's levels are."""
    file = tmp_path / "policies.yaml"
    file.write_text("network: {levels: [example.com/rack]}\n")
    return str(file)


async def test_a_gang_without_a_place_is_refused_with_the_reason(
    cluster: GpuCluster, shell: CommandLine, racks: str
) -> None:
    network(cluster)
    for near in ("leaf", " leaf", "leaf "):
        refused = await shell.run("plan", "--gang", "4x8", "--near", near)
        assert refused.exit_code == 1
        assert "the largest leaf, s/l0, has room for 3 of them, even if it is empty" in refused.stderr
    refused = await shell.run("plan", "--gang", "4x8", "--near", "leaf", "--policies", racks)
    assert "Its levels are node, rack, cluster" in refused.stderr


@pytest.mark.parametrize(("profile", "told"), [("mi300x-x8", False), ("dgx-h100", True)])
def test_what_is_not_predicted_is_not_told(profile: str, told: bool) -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.set_node(name, profiles.load(profile), range(8))
    found = plan_gang.data(
        place_gang(fleet, GangRequest(pods=2, pod=Whole(containers=(8,), vendor=profiles.load(profile).vendor.word)))
    )
    assert ["busbw_gbps" in each for each in (found, *found["pods"])] == [told] * 3


async def test_closed_nodes_are_left_out_and_words_count(cluster: GpuCluster, shell: CommandLine, racks: str) -> None:
    network(cluster)
    cluster.node("n0", "dgx-h100", unschedulable=True)
    cluster.node("n9", "dgx1-v100")
    await run_all(cluster)
    found = await shell.data("plan", "--gang", "5x8", "--product", "*H100*", "--policies", racks)
    assert (found["network_level"], sorted(found["nodes"])) == ("cluster", ["n1", "n2", "n3", "n4", "n5"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gang", "8"), "write pods x GPUs of each"),
        (("--gang", "0x8"), "write pods x GPUs of each"),
        (("--gang", "9-8x8"), "write pods x GPUs of each"),
        (("--gang", "8x8", "--machine", "dgx1-v100"), "leave out --machine"),
        (("--gang", "8x8", "--batch"), "leave out --batch"),
        (("--gang", "8x8", "--message-size", "64Mi", "--fractions", "0:0.5"), "leave out --message-size, --fractions"),
        (("--machine", "dgx1-v100", "--gpus", "2", "--near", "leaf"), "give it, or leave out --near"),
        (("--machine", "dgx1-v100", "--gpus", "2", "--kubeconfig", "f", "--context", "c"), "--kubeconfig, --context"),
        (("--batch", "--near", "leaf"), "give it, or leave out --near"),
        (("--gang", "8x1", "--share", "0.5"), "whole GPUs"),
    ],
)
def test_what_cannot_be_asked(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["plan", *arguments])
    assert result.exit_code != 0
    assert said in result.output


async def test_levels_are_those_of_kueues_topology_where_no_file_names_some(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    network(cluster)
    hall = {"spec": {"levels": [{"nodeLabel": "example.com/rack"}, {"nodeLabel": "kubernetes.io/hostname"}]}}
    shell.api.optional = {KUEUE_TOPOLOGIES[0]}
    shell.api.put(KUEUE_TOPOLOGIES[0], hall | {"metadata": {"name": "hall"}})
    assert (await shell.data("plan", "--gang", "2x8", "--near", "rack"))["network_level"] == "rack"
    assert (await shell.data("free"))["gangs"][0]["level"] == "rack"
