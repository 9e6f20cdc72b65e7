"""``gputopo verify``: checks of the driver, a cluster and its nodes, each with a repair if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster import access, cluster_reading, cluster_view, installation, policies_in_force
from dradriver.cli.cluster.cluster_options import (
    allocating_driver_option,
    driver_namespace_option,
    output_options,
    server_options,
)
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.verifier import (
    agent_admission_checks,
    agent_checks,
    cluster_checks,
    job,
    policies_checks,
    rights_checks,
    webhook_checks,
)
from dradriver.cli.verifier.cluster_checks import Seen
from dradriver.cli.verifier.driver_pods import NODE, SELECTOR, WEBHOOK_SELECTOR, pods_of
from dradriver.cli.verifier.finding import Finding, Status, failed, warned, worst
from dradriver.cluster.views.gone_node_views import GoneNode
from dradriver.cluster.views.holder_names import Held, held_by
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VALIDATING_WEBHOOKS,
)  # fmt: skip
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine
from dradriver.view.document import Cell, Column, Document, Notes, Table, Tone, report
from dradriver.view.output import show_as, show_documents
from dradriver.view.terminal_text import plain

_TONES: Final = {Status.PASS: Tone.FREE, Status.WARN: Tone.WARNING, Status.FAIL: Tone.ERROR}
_VERSION_BYTES: Final = 1 << 16
_NOT_CHECKED: Final = 2  # the exit status if the checks could not be made
_OF_GPUS: Final = {"taints", "lost-gpus"}  # checks of which health says more
_HEALTH: Final = (
    "GPUs that are lost or have a fault do not change the exit status of verify. gputopo health names each with its "
    "repair, and ends with 1 if new pods cannot get it."
)
_VIEWER: Final = "ask for the chart's roles gpu-topology-viewer, which have all rights that gputopo needs"


class _Version(msgspec.Struct, rename="camel"):
    """The version that an API server reports."""

    git_version: str = ""


@click.command()
@click.argument("node", required=False)
@click.option("--this-machine", is_flag=True, help="Check the hardware of this machine, which is NODE.")
@click.option(
    "--job", "as_job", is_flag=True, help="Print a Job that checks the hardware of NODE, for kubectl apply -f -."
)
@click.option(
    "--driver-root", metavar="DIR", type=click.Path(path_type=Path),
    help="With --this-machine: the root of the file system with the NVIDIA driver, for example /run/nvidia/driver.",
)  # fmt: skip
@click.option(
    "--host-root", metavar="DIR", type=click.Path(path_type=Path), default=Path("/"), show_default=True,
    help="With --this-machine: the root of the host's files.",
)  # fmt: skip
@click.option(
    "--cdi-root", metavar="DIR", type=click.Path(path_type=Path), default=Path("/var/run/cdi"), show_default=True,
    help="With --this-machine: the folder in which the container runtime looks for CDI specifications.",
)  # fmt: skip
@click.option(
    "-n", "--namespace", default="default", show_default=True, metavar="NAME", help="The namespace of the test pod."
)
@driver_namespace_option
@allocating_driver_option
@server_options
@output_options
def verify(
    node: str | None,
    this_machine: bool,
    as_job: bool,
    driver_root: Path | None,
    host_root: Path,
    cdi_root: Path,
    namespace: str,
    driver_namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print PASS, WARN or FAIL for each thing that the driver needs, and what to do.

    By default the command checks the cluster; with NODE, only this node. With --this-machine it checks the hardware and
    the container runtime of the machine on which it runs; with NODE also whether the node's slices describe this
    machine.

    The checks of the cluster are about the installation. If no driver is installed, the first line says so, and no part
    of the driver is checked. A GPU that is lost or has a fault is a WARN: pods get the other GPUs. "gputopo health" is
    about the GPUs, and ends with 1 if a GPU is lost or has a fault that keeps pods off it.

    Exit status: 0 no FAIL, 1 a FAIL, 2 wrong usage, or the checks could not run.
    """
    if as_job and (this_machine or node is None):
        raise click.UsageError("--job: name the NODE to look at, and leave out --this-machine")
    try:
        # A function, because the checks of a machine alone need no cluster.
        def read_kubeconfig() -> ServerConfig:
            return access.server(None if kubeconfig is None else Path(kubeconfig), context)

        if as_job and node is not None:
            node_job = asyncio.run(_job(read_kubeconfig(), driver_namespace, node))
            show_documents([node_job])
            name = f"job/{node_job['metadata']['name']}"
            logs = f"kubectl -n {node_job['metadata']['namespace']} logs -f --pod-running-timeout=5m {name}"
            click.echo(plain(f"What it finds, once it is applied: {logs}"), err=True)
            return
        if this_machine:
            findings = _check_machine(read_kubeconfig, node, driver_namespace, driver_root, host_root, cdi_root)
        else:
            findings = asyncio.run(_check_cluster(read_kubeconfig(), driver_namespace, namespace, node or ""))
    except DriverError as error:
        click.echo(f"Error: {plain(str(error))}", err=True)
        raise click.exceptions.Exit(_NOT_CHECKED) from None
    show_as(output, document=lambda: document(findings), data=lambda: data(findings), no_color=no_color)
    if worst(findings) is Status.FAIL:
        raise click.exceptions.Exit(1)


def _check_machine(
    read_kubeconfig: Callable[[], ServerConfig],
    node: str | None,
    driver_namespace: str | None,
    driver_root: Path | None,
    host_root: Path,
    cdi_root: Path,
) -> list[Finding]:
    """Check the hardware and the container runtime of this machine.

    Args:
        read_kubeconfig: Returns the API server; it is called only if ``node`` is given.
        node: The node that this machine is; its ResourceSlices are compared with the machine. None skips that.
        driver_namespace: The driver's namespace, if the user names it.
        driver_root: Root of the file system that holds the NVIDIA driver.
        host_root: Where the host's files are.
        cdi_root: Where the container runtime looks for CDI specifications.
    """
    from dradriver.cli.verifier import container_checks, machine_checks, nic_checks

    # Error counters of NICs are read before and after the GPUs: only those that grow are a fault of now.
    nics_before = nic_checks.read(host_root)
    reading = machine_checks.read(driver_root=driver_root, host_root=host_root)
    findings: list[Finding] = []
    machine: Machine | None = None
    if isinstance(reading, Finding):
        findings.append(reading)
    else:
        machine = reading.machine
        findings += machine_checks.findings(reading, driver_root=driver_root, host_root=host_root)
    findings += nic_checks.findings(nics_before, nic_checks.read(host_root), machine, host_root=host_root)

    # The driver that allocates the GPUs, by the option, or else by the node's slices.
    allocating_driver = current_ledger()
    if node is not None:
        try:
            slices, namespace = asyncio.run(_slices_and_namespace(read_kubeconfig(), node, driver_namespace))
            if allocating_driver is OURS:
                allocating_driver = cluster_checks.ledger_of(slices)
            if machine is None:
                message = "there is no machine to compare them with: this one cannot be read"
                findings.append(warned("slices", message, "see the check driver"))
            else:
                findings.append(machine_checks.against_slices(machine, _machine_of(slices), node, namespace))
        except TopologyError as error:
            findings.append(failed("slices", str(error), "restart the node agent's pod, which writes its slices again"))
        except DriverError as error:
            findings.append(warned("slices", f"they cannot be read: {error}", "the other checks need no API server"))

    is_ours = allocating_driver is OURS
    findings += container_checks.findings(machine, host_root=host_root, cdi_root=cdi_root, is_ours=is_ours)
    return findings


async def _slices_and_namespace(
    server: ServerConfig, node: str, driver_namespace: str | None
) -> tuple[list[ResourceSlice], str]:
    """Return a node's slices of all drivers, and the namespace where the driver is installed."""
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        of_node = f"spec.nodeName={node}"
        slices = await cluster_reading.listed(client, server, RESOURCE_SLICES, ResourceSlice, field_selector=of_node)
        return slices, await policies_in_force.driver_namespace(client, driver_namespace)


def _machine_of(slices: Iterable[ResourceSlice]) -> Machine | None:
    return resource_slices.read_machine([piece for piece in slices if piece.spec.driver == names.DRIVER])


async def _check_cluster(
    server: ServerConfig, named_namespace: str | None, try_namespace: str, node: str
) -> list[Finding]:
    """Check a cluster's nodes and the driver's components.

    Args:
        server: The API server.
        named_namespace: The driver's namespace, if the user names it; else it is looked for.
        try_namespace: The namespace in which the creation of a pod is tried (dry run).
        node: The only node to check. Empty checks all nodes, and the components of the driver that belong to no node.

    Raises:
        ClusterError: There is no such node, or the server does not let us read what the checks need.
    """
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        driver = await installation.read(client, server, named_namespace)
        driver_namespace = driver.namespace
        nodes: list[dict[str, Any]] = await cluster_reading.listed(client, server, NODES, dict)
        if node:
            nodes = [listed_node for listed_node in nodes if listed_node["metadata"]["name"] == node]
            if not nodes:
                raise ClusterError(f"the cluster has no node {node}. List the nodes: kubectl get nodes")
        classes: list[dict[str, Any]] = await cluster_reading.listed(client, server, DEVICE_CLASSES, dict)
        slices = await cluster_reading.listed(client, server, RESOURCE_SLICES, ResourceSlice)
        pods: list[dict[str, Any]] = await cluster_reading.listed(
            client, server, PODS, dict, namespace=driver_namespace
        )
        # The nodes are None if they are not known; ``unread`` has a warning then.
        gone_nodes, holders, unread = await _agents(client, server, nodes, slices)
        if driver.unread:
            unread.append(warned(NODE, f"how many node agents there should be is not known: {driver.unread}", _VIEWER))
        agents_wanted = agent_checks.desired(driver.daemon_sets)
        # Without node agents no driver is installed, but an administrator can have deleted the node agents alone.
        are_parts_there = not driver.absence or any(pods_of(pods, part) for part in cluster_checks.PARTS)
        seen = Seen(
            nodes=nodes,
            slices=slices,
            pods=pods,
            leases=await cluster_reading.listed(client, server, LEASES, dict, namespace=driver_namespace),
            classes=frozenset(device_class["metadata"]["name"] for device_class in classes),
            namespace=driver_namespace,
            only=node,
            gone=gone_nodes,
            used=holders,
            agents_wanted=agents_wanted,
            images_wanted=agent_checks.images(driver.daemon_sets),
            are_parts_there=are_parts_there,
            server=await _server_version(client),
        )
        # ``seen``: everything that the checks look at, so that they read nothing themselves.
        # Leases and certificates have times of the cluster, and this machine's clock may differ.
        now = cluster_checks.clock(client.connection.date)
        findings = [failed("installation", driver.problem, driver.cure)] if driver.absence else []
        findings += [*cluster_checks.findings(seen, now=now), *unread]
        if node:
            return findings

        # Parts of the driver that belong to no node: the DaemonSet's pods, policies, webhook and rights.
        is_missing = agents_wanted > len(seen.agents())
        findings += await _agent_admission(client, server, driver_namespace, is_missing=is_missing)
        if are_parts_there:
            stored = await policies_in_force.read(client, server, driver_namespace)
            used = await policies_checks.ask(client, seen.pods, driver_namespace)
            findings.append(policies_checks.finding(seen.leases, used, stored, driver_namespace))
            findings += policies_checks.unmatched_selectors(stored.policies, cluster_checks.gpus_by_node(seen))
        try:
            findings += await _webhook(client, server, seen, try_namespace, now=now)
            findings += await rights_checks.findings(client, driver_namespace)
        except (ApiError, Unreachable) as error:
            raise cluster_reading.refused(error, server, PODS) from error
    return findings


async def _webhook(
    client: Client, server: ServerConfig, seen: Seen, try_namespace: str, *, now: float
) -> list[Finding]:
    """Return the findings about the webhook; none if the cluster has neither a part of the driver nor a webhook of it.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The server, for messages.
        seen: The objects of the cluster.
        try_namespace: The namespace in which the creation of a pod is tried (dry run).
        now: Seconds since the epoch.

    Raises:
        ApiError: The server refuses the pod that is tried, and not because of the webhook.
        ClusterError: The user may not read webhook configurations.
        Unreachable: The server does not answer.
    """
    configurations: list[dict[str, Any]] = []
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        # Other programs can have webhooks in the driver's namespace.
        configurations += await cluster_reading.listed(client, server, resource, dict, label_selector=WEBHOOK_SELECTOR)
    if not (seen.are_parts_there or configurations):
        return []
    findings = [
        *webhook_checks.certificates(configurations, seen.namespace, now=now),
        *await webhook_checks.against_secret(client, configurations, seen.pods, seen.namespace, now=now),
    ]
    if webhook_checks.excludes(configurations, seen.namespace, try_namespace):
        return [*findings, webhook_checks.not_asked(try_namespace)]
    return [*findings, await webhook_checks.check_with_bad_pod(client, try_namespace)]


async def _agent_admission(client: Client, server: ServerConfig, namespace: str, *, is_missing: bool) -> list[Finding]:
    """Return the finding that Kubernetes cannot create node agents; empty if it can.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The server, for messages.
        namespace: The driver's namespace.
        is_missing: Whether the DaemonSet wants more pods than there are.
    """
    try:
        named = f"metadata.name={namespace}"
        found: list[dict[str, Any]] = await cluster_reading.listed(
            client, server, NAMESPACES, dict, field_selector=named
        )
        events: list[dict[str, Any]] = []
        if is_missing:
            events = await cluster_reading.listed(
                client, server, EVENTS, dict, namespace=namespace, field_selector=agent_admission_checks.REFUSALS
            )
    except ClusterError as error:
        return [warned("pod-security", f"whether {namespace} allows node agents is not known: {error}", _VIEWER)]
    labels = {key: text for one in found for key, text in (one["metadata"].get("labels") or {}).items()}
    return list(agent_admission_checks.findings(labels, events, namespace))


async def _agents(
    client: Client, server: ServerConfig, nodes: list[dict[str, Any]], slices: list[ResourceSlice]
) -> tuple[tuple[GoneNode, ...] | None, Held, list[Finding]]:
    """Return the nodes whose agent is gone, the users of devices, and warnings.

    A warning names objects that the user may not read. Then the nodes are None, and there are no users.
    """
    node_names = {str(node["metadata"]["name"]) for node in nodes}
    try:
        claims = await cluster_reading.listed(client, server, RESOURCE_CLAIMS, cluster_reading.read_claim)
    except ClusterError as error:
        return None, {}, [warned("agents", f"whether a node lost its agent is not known: {error}", _VIEWER)]
    gone_nodes = tuple(cluster_view.gone_views(slices, claims, is_node=node_names.__contains__))
    return gone_nodes, held_by(claims, {}), []


async def _server_version(client: Client) -> str:
    """Return the version of the API server; empty if it cannot be read."""
    try:
        body = await client.connection.request("GET", "/version", max_bytes=_VERSION_BYTES)
        return msgspec.json.decode(body, type=_Version).git_version
    except (DriverError, msgspec.DecodeError):
        return ""


async def _job(server: ServerConfig, driver_namespace: str | None, node: str) -> dict[str, Any]:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        namespace = await policies_in_force.driver_namespace(client, driver_namespace)
        pods: list[dict[str, Any]] = await cluster_reading.listed(
            client, server, PODS, dict, namespace=namespace, label_selector=SELECTOR
        )
    agent = job.of_agent(pods, node)
    if agent is None:
        raise ClusterError(f"namespace {namespace} has no node agent whose image to take: --driver-namespace NAME")
    return job.manifest(node, agent, namespace=namespace)


def document(findings: Sequence[Finding]) -> Document:
    """Return the output of ``gputopo verify``: the findings with their repairs, the worst first, and their counts."""
    order = (Status.FAIL, Status.WARN, Status.PASS)
    rows = tuple(
        (
            Cell(finding.status.value, _TONES[finding.status]),
            Cell(finding.check),
            Cell(finding.said),
            Cell(finding.cure),
        )
        for finding in sorted(findings, key=lambda finding: order.index(finding.status))
    )
    counts = ", ".join(f"{sum(finding.status is status for finding in findings)} {status.value}" for status in order)
    columns = (Column("status"), Column("check"), Column("seen"), Column("cure"))
    lines = [Cell(counts)]
    if any(finding.check in _OF_GPUS for finding in findings):
        lines.append(Cell(_HEALTH))
    return report(Table(columns=columns, rows=rows), Notes(lines=tuple(lines)))


def data(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings of ``gputopo verify`` as JSON and YAML data."""
    return {"status": worst(findings).value, "findings": [msgspec.to_builtins(finding) for finding in findings]}
