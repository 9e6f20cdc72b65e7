"""``gputopo verify``: whether the driver, a cluster and its nodes are as they should be, and what to do where not."""

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
from dradriver.cli.cluster import access, cluster_reading, cluster_view, policies_in_force
from dradriver.cli.cluster.cluster_options import driver_namespace_option, ledger_option, output_options, server_options
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.verifier import agent_checks, cluster_checks, job, policies_checks, rights_checks, webhook_checks
from dradriver.cli.verifier.cluster_checks import Seen
from dradriver.cli.verifier.driver_pods import SELECTOR
from dradriver.cli.verifier.finding import Finding, Status, failed, warned, worst
from dradriver.cluster.views.gone_node_views import GoneNode
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import (
    DAEMON_SETS,
    DEVICE_CLASSES,
    LEASES,
    MUTATING_WEBHOOKS,
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
_NOT_LOOKED: Final = 2
_VIEWER: Final = "ask for the chart's roles gpu-topology-viewer, which have all rights that gputopo needs"


@click.command()
@click.argument("node", required=False)
@click.option("--this-machine", is_flag=True, help="Look at the hardware of this machine, which is NODE.")
@click.option("--job", "as_job", is_flag=True, help="Print the Job that does so on NODE, for kubectl apply -f -.")
@click.option(
    "--driver-root", metavar="DIR", type=click.Path(path_type=Path),
    help="With --this-machine: root of the file system that holds the NVIDIA driver, such as /run/nvidia/driver.",
)  # fmt: skip
@click.option(
    "--host-root", metavar="DIR", type=click.Path(path_type=Path), default=Path("/"), show_default=True,
    help="With --this-machine: where the host's files are.",
)  # fmt: skip
@click.option(
    "--cdi-root", metavar="DIR", type=click.Path(path_type=Path), default=Path("/var/run/cdi"), show_default=True,
    help="With --this-machine: where the container runtime looks for CDI specifications.",
)  # fmt: skip
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Where a pod is tried.")
@driver_namespace_option
@ledger_option
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
    """Say of each thing that the driver needs PASS, WARN or FAIL, and what to do.

    Without more the cluster is looked at, with NODE only that node of it. With --this-machine it is the hardware and
    the container runtime of the machine that this runs on; with NODE also whether that node's slices tell of it.

    Exit status: 0 nothing FAILs, 1 something does, 2 wrong usage, or it could not be looked at.
    """
    if as_job and (this_machine or node is None):
        raise click.UsageError("--job: name the NODE to look at, and leave out --this-machine")
    try:

        def server() -> ServerConfig:
            return access.server(None if kubeconfig is None else Path(kubeconfig), context)

        if as_job and node is not None:
            made = asyncio.run(_job(server(), driver_namespace, node))
            show_documents([made])
            name = f"job/{made['metadata']['name']}"
            logs = f"kubectl -n {made['metadata']['namespace']} logs -f --pod-running-timeout=5m {name}"
            click.echo(plain(f"What it finds, once it is applied: {logs}"), err=True)
            return
        if this_machine:
            found = _machine(server, node, driver_namespace, driver_root, host_root, cdi_root)
        else:
            found = asyncio.run(_cluster(server(), driver_namespace, namespace, node or ""))
    except DriverError as error:
        click.echo(f"Error: {plain(str(error))}", err=True)
        raise click.exceptions.Exit(_NOT_LOOKED) from None
    show_as(output, document=lambda: document(found), data=lambda: data(found), no_color=no_color)
    if worst(found) is Status.FAIL:
        raise click.exceptions.Exit(1)


def _machine(
    server: Callable[[], ServerConfig],
    node: str | None,
    driver_namespace: str | None,
    driver_root: Path | None,
    host_root: Path,
    cdi_root: Path,
) -> list[Finding]:
    from dradriver.cli.verifier import container_checks, machine_checks, nic_checks

    before = nic_checks.read(host_root)
    read = machine_checks.read(driver_root=driver_root, host_root=host_root)
    found: list[Finding] = []
    own: Machine | None = None
    if isinstance(read, Finding):
        found.append(read)
    else:
        own = read.machine
        found += machine_checks.findings(read, driver_root=driver_root, host_root=host_root)
    found += nic_checks.findings(before, nic_checks.read(host_root), own, host_root=host_root)
    ledger = current_ledger()
    if node is not None:
        try:
            pieces, namespace = asyncio.run(_published(server(), node, driver_namespace))
            ledger = ledger if ledger is not OURS else cluster_checks.ledger_of(pieces)
            if own is None:
                said = "there is no machine to compare them with: this one cannot be read"
                found.append(warned("slices", said, "see the check driver"))
            else:
                found.append(machine_checks.against_slices(own, _machine_of(pieces), node, namespace))
        except TopologyError as error:
            found.append(failed("slices", str(error), "restart the node agent's pod, which writes its slices anew"))
        except DriverError as error:
            found.append(warned("slices", f"they cannot be read: {error}", "the other checks need no API server"))
    found += container_checks.findings(own, host_root=host_root, cdi_root=cdi_root, own=ledger is OURS)
    return found


async def _published(server: ServerConfig, node: str, driver_namespace: str | None) -> tuple[list[ResourceSlice], str]:
    """Return a node's slices of all drivers, and the namespace where the driver is installed."""
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        of_node = f"spec.nodeName={node}"
        pieces = await cluster_reading.listed(client, server, RESOURCE_SLICES, ResourceSlice, field_selector=of_node)
        return pieces, await policies_in_force.driver_namespace(client, driver_namespace)


def _machine_of(pieces: Iterable[ResourceSlice]) -> Machine | None:
    return resource_slices.read_machine([one for one in pieces if one.spec.driver == names.DRIVER])


async def _cluster(server: ServerConfig, named: str | None, namespace: str, node: str) -> list[Finding]:
    """Return what is found; ``named`` is the driver's namespace if the user names it."""
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        driver_namespace = await policies_in_force.driver_namespace(client, named)
        nodes: list[dict[str, Any]] = await cluster_reading.listed(client, server, NODES, dict)
        if node:
            nodes = [one for one in nodes if one["metadata"]["name"] == node]
            if not nodes:
                raise ClusterError(f"there is no node {node}; kubectl get nodes lists them")
        classes: list[dict[str, Any]] = await cluster_reading.listed(client, server, DEVICE_CLASSES, dict)
        pieces = await cluster_reading.listed(client, server, RESOURCE_SLICES, ResourceSlice)
        gone, wanted, unread = await _agents(client, server, driver_namespace, nodes, pieces)
        seen = Seen(
            nodes=nodes,
            slices=pieces,
            pods=await cluster_reading.listed(client, server, PODS, dict, namespace=driver_namespace),
            leases=await cluster_reading.listed(client, server, LEASES, dict, namespace=driver_namespace),
            classes=frozenset(one["metadata"]["name"] for one in classes),
            namespace=driver_namespace,
            only=node,
            gone=gone,
            agents_wanted=wanted,
        )
        now = cluster_checks.clock(client.connection.date)  # leases have times of the cluster, maybe not this machine's
        found = [*cluster_checks.findings(seen, now=now), *unread]
        if not node:
            stored = await policies_in_force.read(client, server, driver_namespace)
            used = await policies_checks.ask(client, seen.pods, driver_namespace)
            found.append(policies_checks.finding(seen.leases, used, stored, driver_namespace))
            hooks: list[dict[str, Any]] = await cluster_reading.listed(client, server, MUTATING_WEBHOOKS, dict)
            hooks += await cluster_reading.listed(client, server, VALIDATING_WEBHOOKS, dict)
            found += webhook_checks.certificates(hooks, driver_namespace, now=now)
            try:
                if webhook_checks.excludes(hooks, driver_namespace, namespace):
                    found.append(webhook_checks.not_asked(namespace))
                else:
                    found.append(await webhook_checks.asked(client, namespace))
                found += await rights_checks.findings(client, driver_namespace)
            except (ApiError, Unreachable) as error:
                raise cluster_reading.refused(error, server, PODS) from error
    return found


async def _agents(
    client: Client, server: ServerConfig, namespace: str, nodes: list[dict[str, Any]], pieces: list[ResourceSlice]
) -> tuple[tuple[GoneNode, ...] | None, int, list[Finding]]:
    """Return the nodes whose agent is gone, how many agents the DaemonSet wants, and what may not be read."""
    there = {str(one["metadata"]["name"]) for one in nodes}
    gone: tuple[GoneNode, ...] | None = None
    wanted, unread = 0, []
    try:
        claims = await cluster_reading.listed(client, server, RESOURCE_CLAIMS, cluster_reading.read_claim)
        gone = tuple(cluster_view.gone_views(pieces, claims, is_node=there.__contains__))
    except ClusterError as error:
        unread.append(warned("agents", f"whether a node lost its agent is not known: {error}", _VIEWER))
    try:
        found: list[dict[str, Any]] = await cluster_reading.listed(
            client, server, DAEMON_SETS, dict, namespace=namespace, label_selector=SELECTOR
        )
        wanted = agent_checks.desired(found)
    except ClusterError as error:
        unread.append(warned("node", f"how many node agents there should be is not known: {error}", _VIEWER))
    return gone, wanted, unread


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


def document(found: Sequence[Finding]) -> Document:
    """Return what ``gputopo verify`` prints: what is wrong with its cure, the worst first, then what is well."""
    order = (Status.FAIL, Status.WARN, Status.PASS)
    rows = tuple(
        (Cell(one.status.value, _TONES[one.status]), Cell(one.check), Cell(one.said), Cell(one.cure))
        for one in sorted(found, key=lambda one: order.index(one.status))
    )
    counts = ", ".join(f"{sum(one.status is each for one in found)} {each.value}" for each in order)
    columns = (Column("status"), Column("check"), Column("seen"), Column("cure"))
    return report(Table(columns=columns, rows=rows), Notes(lines=(Cell(counts),)))


def data(found: Sequence[Finding]) -> dict[str, Any]:
    """Return the results of ``gputopo verify`` for programs."""
    return {"status": worst(found).value, "findings": [msgspec.to_builtins(one) for one in found]}
