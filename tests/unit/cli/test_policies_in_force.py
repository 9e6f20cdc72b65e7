"""Commands about a cluster decide by the policies that its driver follows, and say so if they cannot read them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from dradriver.api.policies.policies_reader import read
from dradriver.kube.resources import CONFIG_MAPS, DAEMON_SETS, MUTATING_WEBHOOKS, PODS
from tests.fakes.chart import template
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.installed import DRIVER_NAMESPACE, agents, policies_map, webhook_configuration
from tests.fakes.serving import serving
from tests.unit.cli.test_serve import pieces

CAP = "tenants: {vision: {namespaces: [default], cap: [{gpus: 4}]}}\n"
RACKS = "network: {levels: [example.com/rack]}\n"
CONFIG_MAPS_PATH = r"/configmaps$"

UNREAD = "what is shown follows the default policies, because the policies in force cannot be read: "

# Every command that decides by policies, and can do so without the driver's own records.
COMMANDS = (
    "explain waits",
    "free",
    "defrag",
    "plan --gang 1x2",
    "queue",
    "tenants",
)


async def capped(cluster: GpuCluster, namespace: str = DRIVER_NAMESPACE) -> None:
    """Have a pod wait that asks for more than its tenant may have, though eight GPUs are free."""
    cluster.node("n1")
    cluster.put(CONFIG_MAPS, policies_map(CAP, namespace=namespace))
    cluster.put(DAEMON_SETS, agents(namespace=namespace))
    cluster.worker.follow(read(CAP.encode(), source="x"))
    cluster.pod("waits", 6)
    await run_all(cluster)


@pytest.mark.parametrize("wishes", [{}, {"gang": "g", "gang-size": "1"}])
async def test_explain_says_what_the_controller_says_of_a_cap(
    cluster: GpuCluster, shell: CommandLine, wishes: dict[str, str]
) -> None:
    await capped(cluster)
    cluster.pod("big", 5, wishes=wishes)
    await run_all(cluster)
    found = await shell.data("explain", "big")
    assert found["reason"] == found["recorded_reason"]
    assert 'Refused by quota: tenant "vision" may use 4 GPUs, this ' in found["reason"]


async def test_a_file_overrides_them(cluster: GpuCluster, shell: CommandLine, tmp_path: Path) -> None:
    await capped(cluster)
    file = tmp_path / "other.yaml"
    file.write_text("nccl: {version: 2.21.5}\n")
    found = await shell.data("explain", "waits", "--policies", str(file))
    assert found["reason"].startswith("There is a place for the pod on n1 now")
    assert await shell.data("tenants", "--policies", str(file)) == []


async def test_the_networks_levels_are_those_in_force(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(4):
        cluster.node(f"n{number}", "dgx-h100", labels={"example.com/rack": f"r{number // 2}"})
    cluster.put(CONFIG_MAPS, policies_map(RACKS))
    assert (await shell.data("plan", "--gang", "2x8", "--near", "rack"))["network_level"] == "rack"
    assert (await shell.data("free"))["gangs"][0]["level"] == "rack"


async def test_names_of_policies_are_those_in_force(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1", "dgx-h100")
    cluster.node("n2")
    text = "policies: {fast: {required: nvlink, product: '*H100*'}}\n"
    cluster.put(CONFIG_MAPS, policies_map(text))
    assert (await shell.data("plan", "--gang", "1x4", "--policy", "fast"))["nodes"] == ["n1"]
    refused = await shell.run("plan", "--gang", "1x4", "--policy", "slow")
    assert refused.exit_code == 1
    assert "fast" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
async def test_who_may_not_read_them_is_told_in_one_line_and_the_defaults_count(
    cluster: GpuCluster, shell: CommandLine, command: str
) -> None:
    await capped(cluster)
    shell.api.fail(path=CONFIG_MAPS_PATH, status=403, reason="Forbidden", message="no", times=math.inf)
    result = await shell.run(command)
    assert result.exit_code == 0, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warning: {UNREAD}")
    assert "you may not read configmaps in namespace gpu-topology" in line
    assert "--policies FILE" in line
    assert "viewer.subjects" in line


async def test_an_answer_that_does_not_come_is_told_and_the_defaults_count(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    await capped(cluster)
    shell.api.fail(path=CONFIG_MAPS_PATH, status=500, reason="InternalError", message="etcd", times=math.inf)
    result = await shell.run("free")
    assert result.exit_code == 0, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warning: {UNREAD}")
    assert "viewer.subjects" not in line


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_file_needs_no_right_to_read_them(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path, command: str
) -> None:
    await capped(cluster)
    shell.api.fail(path=CONFIG_MAPS_PATH, status=403, reason="Forbidden", message="no", times=math.inf)
    file = tmp_path / "own.yaml"
    file.write_text(RACKS)
    result = await shell.run(command, "--policies", str(file))
    assert result.exit_code == 0, result.output
    assert "policies in force" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
async def test_what_cannot_be_parsed_is_told_with_its_place_and_the_defaults_count(
    cluster: GpuCluster, shell: CommandLine, command: str
) -> None:
    await capped(cluster)
    cluster.put(CONFIG_MAPS, policies_map("nccl: {}\ntenants: 7\n"))
    result = await shell.run(command)
    assert result.exit_code == 0, result.output
    (line,) = result.stderr.splitlines()
    assert "cannot be read: tenants: '7' is not allowed" in line
    assert "This is line 2 of policies.yaml of ConfigMap gpu-topology/any-policies." in line
    assert "--policies FILE" in line


@pytest.mark.parametrize("wishes", [{}, {"gang": "g", "gang-size": "1"}])
async def test_explain_does_not_promise_a_place_by_other_policies_than_the_controllers(
    cluster: GpuCluster, shell: CommandLine, wishes: dict[str, str]
) -> None:
    """The stored file became invalid: the controller keeps the last valid one, with a cap."""
    await capped(cluster)
    cluster.pod("big", 5, wishes=wishes)
    await run_all(cluster)
    cluster.put(CONFIG_MAPS, policies_map("tenants: 7\n"))
    found = json.loads((await shell.run("explain", "big", "-o", "json")).stdout)
    assert "Refused by quota" in found["recorded_reason"]
    assert found["reason"].startswith("The policies in force cannot be read. By the default policies: There ")


@pytest.mark.parametrize("name", [("--workload", "inference"), ("--policy", "fast")])
async def test_no_name_is_guessed_while_the_policies_cannot_be_read(
    cluster: GpuCluster, shell: CommandLine, name: tuple[str, str]
) -> None:
    await capped(cluster)
    cluster.put(CONFIG_MAPS, policies_map("tenants: 7\n"))
    refused = await shell.run("plan", "--gang", "1x2", *name)
    assert refused.exit_code == 1
    assert f"the meaning of '{name[1]}' is in the policies file, which is invalid or cannot be read" in refused.stderr


async def test_tenants_are_not_known_while_the_policies_cannot_be_read(cluster: GpuCluster, shell: CommandLine) -> None:
    await capped(cluster)
    cluster.put(CONFIG_MAPS, policies_map("tenants: 7\n"))
    unknown = "the tenants are not known, because the policies in force cannot be read\n"
    assert (await shell.run("tenants")).stdout == unknown
    shell.api.fail(path=CONFIG_MAPS_PATH, status=403, reason="Forbidden", message="no", times=math.inf)
    assert (await shell.run("tenants")).stdout == unknown


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
async def test_where_the_charts_config_map_is_missing_that_is_told_in_one_line(
    cluster: GpuCluster, shell: CommandLine, command: str
) -> None:
    await capped(cluster)
    cluster.remove(CONFIG_MAPS, "any-policies", DRIVER_NAMESPACE)
    result = await shell.run(command)
    assert result.exit_code == 0, result.output
    assert result.stderr == f"warning: {absent(DRIVER_NAMESPACE)}\n"


@pytest.mark.slow
async def test_the_page_tells_that_the_charts_config_map_is_missing(cluster: GpuCluster, shell: CommandLine) -> None:
    await capped(cluster)
    async with serving(shell.api) as made:
        assert pieces(made)["unread"] == []
        cluster.remove(CONFIG_MAPS, "any-policies", DRIVER_NAMESPACE)
        while pieces(made)["unread"] != [absent(DRIVER_NAMESPACE)]:
            await made.page.feed.news(made.page.feed.version)


def absent(namespace: str) -> str:
    """Return what is said where a namespace does not have the chart's ConfigMap."""
    return (
        f"{UNREAD}namespace {namespace} has no policies ConfigMap of the chart. Give them with --policies FILE, or "
        "name the driver's namespace with --driver-namespace NAME."
    )


async def test_a_pod_that_is_not_the_drivers_needs_none(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.put(PODS, {"metadata": {"name": "theirs", "namespace": "default"}, "spec": {"containers": []}})
    shell.api.fail(path=CONFIG_MAPS_PATH, status=403, reason="Forbidden", message="no", times=math.inf)
    result = await shell.run("explain", "theirs")
    assert (result.exit_code, result.stderr) == (0, ""), result.output


async def test_another_config_map_with_such_a_file_counts_for_nothing(cluster: GpuCluster, shell: CommandLine) -> None:
    await capped(cluster)
    for name in ("a-backup", "z-backup"):
        metadata = {"name": name, "namespace": DRIVER_NAMESPACE}
        cluster.put(CONFIG_MAPS, {"metadata": metadata, "data": {"policies.yaml": "tenants: {}\n"}})
    assert "quota: tenant" in (await shell.data("explain", "waits"))["reason"]
    assert [one["tenant"] for one in await shell.data("tenants")] == ["vision"]


async def test_the_drivers_namespace_is_where_its_webhook_is(cluster: GpuCluster, shell: CommandLine) -> None:
    await capped(cluster, namespace="kube-gpu")
    cluster.put(MUTATING_WEBHOOKS, webhook_configuration("kube-gpu"))
    assert "quota: tenant" in (await shell.data("explain", "waits"))["reason"]
    assert [one["tenant"] for one in await shell.data("tenants")] == ["vision"]
    elsewhere = await shell.run("tenants", "-o", "json", "--driver-namespace", "elsewhere")
    assert (elsewhere.exit_code, elsewhere.stdout.strip()) == (0, "[]")
    no_policies, no_driver = elsewhere.stderr.splitlines()
    assert no_policies == f"warning: {absent('elsewhere')}"
    assert no_driver.startswith("warning: No driver is installed: namespace elsewhere has no DaemonSet of node agents.")
    assert no_driver.endswith("or name the driver's namespace with --driver-namespace.")


async def test_who_may_not_read_webhooks_names_the_drivers_namespace(cluster: GpuCluster, shell: CommandLine) -> None:
    await capped(cluster, namespace="kube-gpu")
    cluster.put(MUTATING_WEBHOOKS, webhook_configuration("kube-gpu"))
    shell.api.fail(path="webhookconfigurations", status=403, reason="Forbidden", message="no", times=math.inf)
    cluster.remove(CONFIG_MAPS, "any-policies", DRIVER_NAMESPACE)
    guessed = await shell.run("explain", "waits", "-o", "json")
    assert (guessed.exit_code, guessed.stderr) == (0, f"warning: {absent(DRIVER_NAMESPACE)}\n")
    found = await shell.data("explain", "waits", "--driver-namespace", "kube-gpu")
    assert "quota: tenant" in found["reason"]


@pytest.mark.slow
@pytest.mark.helm
async def test_they_are_found_as_the_chart_installs_them(cluster: GpuCluster, shell: CommandLine) -> None:
    cap = "policies.tenants.vision"
    rendered = template(
        f"{cap}.namespaces[0]=default", f"{cap}.weight=3", "nameOverride=b", "fullnameOverride=c", namespace="kube-gpu"
    )
    kinds = {"ConfigMap": CONFIG_MAPS, "DaemonSet": DAEMON_SETS, "MutatingWebhookConfiguration": MUTATING_WEBHOOKS}
    for made in filter(None, yaml.safe_load_all(rendered)):
        if made["kind"] in kinds:
            cluster.put(kinds[made["kind"]], made)
    cluster.node("n1")
    assert [(one["tenant"], one["weight"]) for one in await shell.data("tenants")] == [("vision", 3)]
