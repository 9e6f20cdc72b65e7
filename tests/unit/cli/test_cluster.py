"""``gputopo topo --cluster`` against an API server."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dradriver.api.base import gang_barrier_device, names
from dradriver.cli.main import main
from dradriver.kube import client
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.topology import machine_codec, topo_m
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.commands import Terminal
from tests.fakes.gpunodes import allocated, machine, piece, promised
from tests.fakes.installed import install


class Cluster:
    """An API server and the kubeconfig that leads to it."""

    def __init__(self, api: FakeApiServer, folder: Path) -> None:
        self.api = api
        self.kubeconfig = folder / "config"
        self.user({"token": "secret"})
        api.token = "secret"

    def user(self, user: dict[str, Any]) -> None:
        document = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": self.api.config.url}}],
            "users": [{"name": "u", "user": user}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))

    def put(self, *objects: dict[str, Any]) -> None:
        for obj in objects:
            self.api.put(
                RESOURCE_SLICES if "devices" in obj["spec"] and "driver" in obj["spec"] else RESOURCE_CLAIMS, obj
            )

    async def run(self, *arguments: str, runner: CliRunner | None = None, **options: Any) -> Result:
        line = ["topo", "--cluster", "--kubeconfig", str(self.kubeconfig), *arguments]
        return await asyncio.to_thread((runner or CliRunner()).invoke, main, line, **options)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with FakeApiServer() as api:
        install(api.store)
        yield Cluster(api, tmp_path)


@pytest.fixture
def two(cluster: Cluster) -> Cluster:
    """Two nodes with an allocated, a promised and a watching claim."""
    cluster.put(
        piece("node-10", "dgx-h100"),
        piece("node-9"),
        allocated("gpus-1", "node-9", [0, 3], pods=["trainer"]),
        promised("gpus-2", "node-9", [1, 2], pod="next"),
        allocated("watch", "node-9", range(8), pods=["dcgm"], namespace="ops", adminAccess=True),
    )
    return cluster


async def test_the_table_has_a_row_for_each_node(two: Cluster) -> None:
    result = await two.run()
    assert (result.exit_code, result.stderr) == (0, "")
    head, first, second, _, title = result.stdout.splitlines()
    assert [re.split("  +", line) for line in (head, first, second)] == [
        ["NODE", "PRODUCT", "GPUS", "FREE", "UNHEALTHY", "LARGEST FREE LINKED SET", "USED BY"],
        [
            "node-9", "Tesla V100-SXM2-32GB", "8", "4", "4: GPU4 GPU5 GPU6 GPU7 (80 GB/s all-reduce)",
            "team-a/next, team-a/trainer",
        ],
        [
            "node-10", "NVIDIA H100 80GB HBM3", "8", "8",
            "8: GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 (476 GB/s all-reduce)",
        ],
    ]  # fmt: skip
    assert title == "2 nodes, 16 GPUs, 12 free. --node NAME or --detail shows the links, and which pods use which GPU."


async def test_the_row_of_a_cordoned_node_says_so(two: Cluster) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    two.api.put(NODES, {"metadata": {"name": "node-9"}, "spec": {"unschedulable": True}, "status": ready})
    two.api.put(NODES, {"metadata": {"name": "node-10"}, "status": ready})
    _, first, second, *_ = (await two.run()).stdout.splitlines()
    assert re.split("  +", first)[2:5] == ["8", "0", "none (cordoned)"]
    assert "cordoned" not in second


async def test_in_detail_there_are_holders_and_matrices_of_all_nodes_or_of_those_that_are_named(two: Cluster) -> None:
    whole, one = await two.run("--detail"), await two.run("--node", "node-9")
    assert [result.stdout.count("Node: ") for result in (whole, one)] == [2, 1]
    assert one.stdout.count("Users of the GPUs:") == 1


async def test_the_detail_shows_a_summary_and_each_nodes_holders_and_matrix(two: Cluster) -> None:
    result = await two.run("--detail")
    assert (result.exit_code, result.stderr) == (0, "")
    head, first, second = result.stdout.split("Node: ")
    summary, holders = head.strip().split("\n\n")
    assert [line.split()[0] for line in summary.splitlines()] == ["NODE", "node-9", "node-10"]
    assert holders == (
        "Users of GPUs:\n  PODS            GPUS\n  team-a/next     node-9 GPU1 GPU2\n  team-a/trainer  node-9 GPU0 GPU3"
    )
    assert (
        head.splitlines()[1].split()[-6:]
        == ["4:", *(f"GPU{i}" for i in (4, 5, 6, 7)), "(80", "GB/s", "all-reduce)"][-6:]
    )
    assert first.startswith("node-9\n\nUsers of the GPUs:\n  GPU   USED BY                  CLAIM\n")
    assert "  GPU0  team-a/trainer           gpus-1\n        ops/dcgm (adminAccess)   watch\n" in first
    assert "  GPU1  team-a/next (tentative)  gpus-2\n" in first
    assert "  GPU4  free\n" in first
    assert topo_m.read(first[first.index("\n      GPU0") :]).links == machine("node-9").links
    assert second.count("  free\n") == 8
    assert topo_m.read(second[second.index("\n       GPU0") :]).links == machine("node-10", "dgx-h100").links


async def test_json_and_yaml_are_one_document(two: Cluster) -> None:
    result = await two.run("-o", "json")
    document = json.loads(result.stdout)
    assert [node["node"] for node in document] == ["node-9", "node-10"]
    node = document[0]
    assert list(node) == ["node", "free", "largest_nvlink_set", "gpus", "machine"]
    assert node["free"] == node["largest_nvlink_set"]["gpus"] == [4, 5, 6, 7]
    assert node["gpus"][1] == {
        "index": 1,
        "uuid": machine("node-9").gpus[1].uuid,
        "state": "tentative",
        "blocked": "",
        "used_by": [
            {
                "allocation": "tentative",
                "namespace": "team-a",
                "claim": "gpus-2",
                "pods": ["next"],
                "share_id": "",
                "fraction": "",
            },
            {
                "allocation": "admin",
                "namespace": "ops",
                "claim": "watch",
                "pods": ["dcgm"],
                "share_id": "",
                "fraction": "",
            },
        ],
    }  # fmt: skip
    assert machine_codec.decode(json.dumps(node["machine"])) == machine("node-9")
    assert node["machine"]["order"] == [0, 3, 1, 2, 4, 7, 5, 6]
    assert yaml.safe_load((await two.run("-o", "yaml")).stdout) == document


@pytest.mark.parametrize("output", ["svg", "html"])
async def test_pictures_come_out_whole(two: Cluster, output: str) -> None:
    result = await two.run("-o", output)
    assert (result.exit_code, result.stderr) == (0, "")
    root = ET.fromstring(result.stdout)
    assert root.tag.endswith(f"}}{output}")
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("team-a/trainer; ops/dcgm (adminAccess)") == 2


async def test_only_this_drivers_slices_and_pages_of_claims_are_read(
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAGE", 2)
    assert (await two.run("--node", "node-9", "-o", "json")).exit_code == 0
    queries = [(request.path.split("/")[-1], request.query) for request in two.api.requests]
    assert queries[0] == ("resourceslices", {"limit": "2", "fieldSelector": f"spec.driver={names.DRIVER}"})
    assert [path for path, _ in queries[:3]] == ["resourceslices", "resourceclaims", "resourceclaims"]
    assert {request.method for request in two.api.requests} == {"GET"}
    assert two.api.requests[0].headers["User-Agent"].startswith("gputopo/")


async def test_only_the_nodes_asked_for_are_shown(two: Cluster) -> None:
    result = await two.run("--node", "node-9", "--node", "node-8")
    assert result.exit_code == 0
    assert result.stdout.count("Node: ") == 1
    assert result.stderr == "warning: node node-8: it has no slices of driver gpu.topology\n"
    result = await two.run("--node", "node-8")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].endswith("Nodes with slices of this driver: node-9, node-10")


async def test_only_the_nodes_that_a_namespace_holds_gpus_of_are_shown(two: Cluster) -> None:
    for namespace in ("team-a", "ops"):
        found = json.loads((await two.run("-n", namespace, "-o", "json")).stdout)
        assert [node["node"] for node in found] == ["node-9"]
    assert len(json.loads((await two.run("-A", "-o", "json")).stdout)) == 2
    result = await two.run("-n", "team-b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Error: no claim of namespace team-b has a GPU" in result.stderr


async def test_a_node_that_cannot_be_read_is_a_warning_and_the_others_are_shown(two: Cluster) -> None:
    two.put(piece("node-1", text='{"version": 1}'))
    result = await two.run("-o", "json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)) == 2
    assert result.stderr.startswith("warning: node node-1 is left out: annotation gpu.topology/machine: ")
    assert result.stderr.count("\n") == 1
    result = await two.run("--node", "node-1")
    assert result.exit_code == 1


async def test_an_exec_plugins_token_is_used(two: Cluster) -> None:
    script = two.kubeconfig.parent / "login.py"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "secret"}}
    script.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(answer))})\n")
    script.chmod(0o755)
    two.user({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}})
    assert (await two.run("-o", "json")).exit_code == 0
    script.write_text("#!/bin/sh\necho 'log in first' >&2; exit 1\n")
    result = await two.run("-o", "json")
    assert result.exit_code == 1
    assert result.stderr == f"Error: exec plugin {script} gave no credentials: exec: process returned 1. log in first\n"


def one_line(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


async def test_a_cluster_without_slices_says_what_to_look_at(cluster: Cluster) -> None:
    said = one_line(await cluster.run())
    assert f"Error: the cluster at {cluster.api.config.url} has no ResourceSlice of driver gpu.topology" in said
    assert "kubectl get pods -A -l app.kubernetes.io/component=node" in said


@pytest.mark.parametrize("plural", ["resourceslices", "resourceclaims"])
async def test_a_user_who_may_not_list_is_told_what_to_ask_for(two: Cluster, plural: str) -> None:
    two.api.fail(path=plural, status=403, reason="Forbidden", message="User u cannot list")
    said = one_line(await two.run())
    assert f"you may not list {plural}.resource.k8s.io in all namespaces" in said
    assert (
        "kubectl create clusterrole gputopo --verb=list --resource=resourceslices.resource.k8s.io,resourceclaims"
        in said
    )
    assert "User u cannot list" in said


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        (
            404,
            "NotFound",
            "does not serve resource.k8s.io/v1 resourceslices. The driver needs Kubernetes 1.34 or newer.",
        ),
        (500, "InternalError", "500 InternalError"),
    ],
)
async def test_other_refusals_are_one_line(two: Cluster, status: int, reason: str, says: str) -> None:
    two.api.fail(path="resourceslices", status=status, reason=reason, times=math.inf, message="two\nlines")
    assert says in one_line(await two.run())


async def test_refused_credentials_are_said(two: Cluster) -> None:
    two.user({"token": "old"})
    assert "your credentials are refused: log in again" in one_line(await two.run())


async def test_an_invalid_answer_is_said(two: Cluster) -> None:
    two.api.fail(path="resourceslices", body=b"<html>")
    assert "no usable answer" in one_line(await two.run())


async def test_an_unreachable_server_is_named(cluster: Cluster) -> None:
    text = cluster.kubeconfig.read_text().replace(cluster.api.config.url, "http://127.0.0.1:1")
    cluster.kubeconfig.write_text(text)
    said = one_line(await cluster.run())
    assert "http://127.0.0.1:1: the API server gave no usable answer: " in said
    assert "Check that it runs, and that this is the right context" in said


async def test_an_unknown_context_and_a_missing_kubeconfig_are_one_line(cluster: Cluster, tmp_path: Path) -> None:
    assert "contexts has no 'there', only here" in one_line(await cluster.run("--context", "there"))
    cluster.kubeconfig.unlink()
    assert "cannot read the kubeconfig" in one_line(await cluster.run())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cluster", "--machine", "dgx1-v100"],
        ["--cluster", "--list"],
        ["--cluster", "--driver-root", "/"],
        ["--machine", "dgx1-v100", "--node", "a"],
        ["--machine", "dgx1-v100", "--context", "a"],
        ["--list", "--kubeconfig", "a"],
        ["--node", "a"],
        ["-n", "a"],
        ["-A"],
        ["--cluster", "-n", "a", "-A"],
    ],
)
def test_what_does_not_go_together_is_wrong_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["topo", *arguments])
    assert result.exit_code == 2
    assert "--cluster" in result.stderr or "-n and -A" in result.stderr


async def test_colours_on_a_terminal_only(two: Cluster) -> None:
    coloured = (await two.run("--detail", runner=Terminal())).stdout
    assert "  GPU4  \x1b[32mfree\x1b[0m\n" in coloured
    assert "\x1b" not in (await two.run("--detail")).stdout
    for arguments, env in ((["--no-color"], {}), ([], {"NO_COLOR": "1"})):
        assert "\x1b" not in (await two.run("--detail", *arguments, runner=Terminal(), env=env)).stdout
    assert os.environ.get("NO_COLOR") is None


async def test_the_slice_of_seats_is_no_node(two: Cluster) -> None:
    before = await two.run()
    two.put(gang_barrier_device.resource_slice())
    after = await two.run()
    assert (after.exit_code, after.stdout, after.stderr) == (0, before.stdout, "")
