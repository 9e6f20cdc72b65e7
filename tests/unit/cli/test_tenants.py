"""``gputopo tenants``, and what ``explain`` says of a cap: as the controller counts it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.policies.policies_reader import read
from dradriver.kube.resources import NAMESPACES
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.unit.cli.test_queue import keep

TEXT = """\
tenants:
  vision:
    namespaces: [default]
    namespaceLabels: {team: vision}
    weight: 2
    cap: [{gpus: 6}, {products: [Tesla V100*], gpus: 7}]
    highestPriority: 100
  language: {namespaces: [language]}
"""


def capped(cluster: GpuCluster) -> None:
    cluster.node("n1")
    keep(cluster, TEXT)
    cluster.worker.follow(read(TEXT.encode(), source="x"))
    for name, labels in (("default", {}), ("dev", {"team": "vision"}), ("language", {}), ("else", {})):
        cluster.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        cluster.worker.namespace_changed(name, labels)


def follow(cluster: GpuCluster, tmp_path: Path, text: str) -> str:
    """Let the controller have these policies. Return the option that makes ``gputopo explain`` use them."""
    cluster.worker.follow(read(text.encode(), source="x"))
    file = tmp_path / "policies.yaml"
    file.write_text(text)
    return f"--policies {file}"


async def shown(shell: CommandLine) -> dict[str, dict[str, Any]]:
    found: list[dict[str, Any]] = await shell.data("tenants")
    return {one["tenant"]: one for one in found}


async def test_each_tenant_with_what_it_may_have_has_and_waits_for(cluster: GpuCluster, shell: CommandLine) -> None:
    capped(cluster)
    cluster.pod("first", 4)
    await run_all(cluster)
    cluster.pod("second", 2, namespace="dev")
    await run_all(cluster)
    cluster.pod("third", 2)
    cluster.pod("theirs", 8, namespace="else")
    await run_all(cluster)
    found = await shown(shell)
    assert list(found) == ["language", "vision", "namespace/else"]
    assert found["vision"] == {
        "tenant": "vision",
        "namespaces": ["default", "dev"],
        "weight": 2,
        "caps": [
            {"gpus": 6, "products": [], "used": 6},
            {"gpus": 7, "products": ["Tesla V100*"], "used": 6},
        ],
        "gpus": 6,
        "fair_share_use": found["vision"]["fair_share_use"],
        "waiting_pods": 1,
        "waiting_gpus": 2,
        "highest_priority": 100,
        "unmatched": [],
    }
    assert (found["language"]["gpus"], found["language"]["caps"]) == (0, [])
    assert (found["namespace/else"]["waiting_pods"], found["namespace/else"]["waiting_gpus"]) == (1, 8)
    table = (await shell.run("tenants")).stdout
    assert "6 of 6; 6 of 7 Tesla V100*" in table


async def test_a_cap_and_a_partition_that_no_gpu_matches_are_named(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    keep(cluster, "tenants: {a: {namespaces: [a], cap: [{products: [V100], gpus: 1}], partition: {nodes: [n2]}}}")
    lines = (await shell.run("tenants")).stdout.splitlines()
    product = "Tesla V100-SXM2-32GB"
    for place, selector in (("cap[0].products", "V100"), ("partition", "nodes: [n2]")):
        says = f"tenants.a.{place}: no GPU of the cluster matches {selector}. The cluster has {product}."
        assert f"warning: {says}" in lines


async def test_without_tenants_it_says_so(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    assert (await shell.run("tenants")).stdout == "the policies file names no tenants\n"


async def test_who_may_not_list_namespaces_is_told_and_sees_what_names_say(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    capped(cluster)
    shell.api.fail(path="/namespaces$", status=403, reason="Forbidden", message="no", times=math.inf)
    result = await shell.run("tenants", "-o", "json")
    assert "namespaces" in result.stderr
    assert result.exit_code == 0


@pytest.mark.parametrize("wishes", [{}, {"gang": "g", "gang-size": "1"}])
async def test_explain_says_that_a_cap_parks_it(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path, wishes: dict[str, str]
) -> None:
    capped(cluster)
    cluster.pod("first", 4)
    await run_all(cluster)
    cluster.pod("third", 3, wishes=wishes)
    await run_all(cluster)
    file = tmp_path / "policies.yaml"
    file.write_text(TEXT)
    said = await shell.data("explain", "third", "--policies", str(file))
    requester = "gang" if wishes else "pod"
    assert said["reason"] == (
        f'Waiting for quota: tenant "vision" may use 6 GPUs, this {requester} requests 3. In use: 4 (default/first 4).'
    )
    assert said["reason"] == said["recorded_reason"]
    assert said["quota_help"] == (
        'Pods of tenant "vision" must release 1 more GPU, or an administrator must raise the cap. '
        f"The {requester} also needs enough free GPUs. gputopo tenants shows the caps and their use."
    )
    shown = (await shell.run("explain", "third", "--policies", str(file))).stdout
    assert f"What would help\n\n{said['quota_help']}\n" in shown
    assert said["free"] is None
    assert said["queue"]["tenant"] == "vision"


async def test_explain_says_which_gpus_a_cap_leaves_out(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    text = "tenants: {vision: {namespaces: [default], cap: [{products: [Tesla V100*], gpus: 0}]}}"
    cluster.node("n1")
    cluster.node("n2", "dgx-a100")
    cluster.pod("theirs", 8, namespace="else", wishes={"product": "NVIDIA A100*"})
    await run_all(cluster)
    option = follow(cluster, tmp_path, text)
    cluster.pod("p", 8)
    await run_all(cluster)
    said = await shell.data(f"explain p {option}")
    assert said["reason"].endswith(
        'GPUs are left out by quota: tenant "vision" may use 0 GPUs of Tesla V100*. In use: 0.'
    )
    assert said["reason"] == cluster.note("p", "reason")
    assert names.REASON in cluster.get_pod("p")["metadata"]["annotations"]


BLUE = (
    "tenants: {{blue: {{namespaces: [default], cap: [{{gpus: {all}}}, {{gpus: {h100}, products: [NVIDIA H100*]}}]}}}}"
)
RAISE = (
    'Ask an administrator to raise the cap of tenant "blue" from 4 to 6 GPUs of NVIDIA H100*. Then there is a place at '
    "once: the GPUs that the cap leaves out are free.{release} gputopo tenants shows the caps and their use."
)


def blue(cluster: GpuCluster, tmp_path: Path, *, all_gpus: int = 6, h100: int = 4) -> str:
    """Let the tenant have these caps. Return the option that makes ``gputopo explain`` use them."""
    return follow(cluster, tmp_path, BLUE.format(all=all_gpus, h100=h100))


async def only_h100_are_free(cluster: GpuCluster) -> None:
    cluster.node("node-a")
    cluster.pod("theirs", 8, namespace="else")
    await run_all(cluster)
    cluster.node("node-b", "hgx-h100")


async def test_explain_says_that_a_higher_cap_gives_a_gang_a_place_at_once(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    await only_h100_are_free(cluster)
    cluster.node("node-c", "hgx-h100")
    cluster.pod("other", 8, namespace="else")  # its end is of no use: the cap leaves out all H100
    await run_all(cluster)
    option = blue(cluster, tmp_path)
    for number in range(2):
        cluster.pod(f"train-{number}", 3, wishes={"gang": "train", "gang-size": "2"})
    await run_all(cluster)
    explained = await shell.data(f"explain train-0 {option}")
    assert "GPUs are left out by quota" in explained["reason"]
    assert explained["nearest"].startswith("The whole cluster has room for 0 of them.")
    assert explained["nearest"].endswith(
        "The room does not count GPUs of NVIDIA H100 80GB HBM3: a cap leaves them out for the gang as a whole."
    )
    assert explained["gang"]["room"] == [{"level": "cluster", "pods": 0, "domain": ""}]
    assert explained["quota_help"] == RAISE.format(release="")
    assert [[(end["node"], end["owners"][0]["pods"]) for end in way] for way in explained["gang"]["would_help"]] == [
        [("node-a", ["theirs"])]
    ]
    shown = (await shell.run("explain", "train-0", *option.split())).stdout
    assert f"What would help\n\n{explained['quota_help']}\n" in shown
    option = blue(cluster, tmp_path, h100=6)
    explained = await shell.data(f"explain train-0 {option}")
    assert (explained["reason"], explained["quota_help"]) == ("There are places for 2 pods of the gang now.", "")


async def test_explain_says_that_a_higher_cap_gives_a_pod_a_place_at_once(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    await only_h100_are_free(cluster)
    cluster.pod("own", 2)
    await run_all(cluster)
    option = blue(cluster, tmp_path, all_gpus=8)
    cluster.pod("p", 4)
    await run_all(cluster)
    explained = await shell.data(f"explain p {option}")
    assert explained["quota_help"] == RAISE.format(
        release=" It is also enough if pods of the tenant release 2 GPUs of NVIDIA H100*."
    )
    assert [help_set["node"] for help_set in explained["would_help"]] == ["node-a"], (
        "free GPUs that a cap leaves out are not free"
    )
    shown = (await shell.run("explain", "p", *option.split())).stdout
    assert len(re.findall(r"^What would help$", shown, re.MULTILINE)) == 1
    cluster.node("node-c")
    assert (await shell.data(f"explain p {option}"))["place"]["node"] == "node-c"


async def test_a_higher_cap_is_no_help_if_the_left_out_gpus_are_in_use(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    cluster.node("node-a")
    cluster.node("node-b", "hgx-h100")
    for name in ("a", "b"):
        cluster.pod(name, 8, namespace="else")
        await run_all(cluster)
    option = blue(cluster, tmp_path, h100=2)
    cluster.pod("p", 4)
    await run_all(cluster)
    explained = await shell.data(f"explain p {option}")
    assert explained["quota_help"] == ""
    assert [help_set["node"] for help_set in explained["would_help"]] == ["node-a"]


async def test_a_refusal_names_the_other_caps_that_the_request_exceeds(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    cluster.node("node-a")
    cluster.node("node-b", "hgx-h100")
    option = blue(cluster, tmp_path)
    cluster.pod("p", 8)
    await run_all(cluster)
    assert (await shell.data(f"explain p {option}"))["quota_help"] == (
        'Request at most 6 GPUs, or ask an administrator to raise the cap of tenant "blue" to at least 8 GPUs. '
        "These caps of the tenant also apply: 4 GPUs of NVIDIA H100*."
    )


async def test_a_refusal_names_the_caps_that_are_in_use(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    cluster.node("node-a")
    cluster.node("node-b", "hgx-h100")
    option = blue(cluster, tmp_path)
    cluster.pod("own", 4)
    await run_all(cluster)
    for number in range(2):
        cluster.pod(f"train-{number}", 3, wishes={"gang": "train", "gang-size": "2", "product": "NVIDIA H100*"})
    await run_all(cluster)
    explained = await shell.data(f"explain train-0 {option}")
    assert explained["reason"] == explained["recorded_reason"]
    assert explained["reason"].startswith("Refused by quota: ")
    assert explained["queue"] is None
    assert explained["quota_help"] == (
        'Request at most 4 GPUs of NVIDIA H100*, or ask an administrator to raise the cap of tenant "blue" to at least '
        "6 GPUs of NVIDIA H100* (in use: 4). These caps of the tenant also apply: 6 GPUs (in use: 4)."
    )
    file = option.split()[1]
    (queued,) = await shell.data("queue", "--policies", file)
    assert (queued["state"], queued["position"]) == ("refused", None)


async def test_a_refusal_says_how_high_the_cap_must_be_and_what_is_in_use(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    cluster.node("node-a")
    cluster.node("node-b")
    option = blue(cluster, tmp_path)
    cluster.pod("own", 4)
    await run_all(cluster)
    for number in range(2):
        cluster.pod(f"train-{number}", 6, wishes={"gang": "train", "gang-size": "2"})
    await run_all(cluster)
    assert (await shell.data(f"explain train-0 {option}"))["quota_help"] == (
        'Request at most 6 GPUs, or ask an administrator to raise the cap of tenant "blue" to at least 12 GPUs '
        "(in use: 4)."
    )


async def test_who_waits_for_a_cap_is_told_the_caps_that_leave_out_gpus_then(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    await only_h100_are_free(cluster)
    option = blue(cluster, tmp_path)
    cluster.pod("solo", 3)
    await run_all(cluster)
    for number in range(2):
        cluster.pod(f"six-{number}", 3, wishes={"gang": "six", "gang-size": "2"})
    await run_all(cluster)
    explained = await shell.data(f"explain six-0 {option}")
    assert explained["reason"] == (
        'Waiting for quota: tenant "blue" may use 6 GPUs, this gang requests 6. In use: 3 (default/solo 3).'
    )
    assert explained["quota_help"] == (
        'Pods of tenant "blue" must release 3 more GPUs, or an administrator must raise the cap. These caps of the '
        "tenant also apply: 4 GPUs of NVIDIA H100* (in use: 3). GPUs of NVIDIA H100 80GB HBM3 are left out until a cap "
        "is raised, even if the tenant uses none. The gang also needs enough free GPUs. gputopo tenants shows the caps "
        "and their use."
    )


async def test_who_waits_for_two_caps_is_told_what_to_release_for_each(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    cluster.node("node-b", "hgx-h100")
    option = blue(cluster, tmp_path)
    cluster.pod("own", 3)
    await run_all(cluster)
    cluster.pod("p", 4)
    await run_all(cluster)
    explained = await shell.data(f"explain p {option}")
    assert explained["reason"].startswith('Waiting for quota: tenant "blue" may use 6 GPUs, this pod requests 4. ')
    assert explained["quota_help"] == (
        'Pods of tenant "blue" must release 1 more GPU and 3 more GPUs of NVIDIA H100* (one GPU can count for '
        "both), or an administrator must raise these caps. The pod also needs enough free GPUs. "
        "gputopo tenants shows the caps and their use."
    )
