"""``gputopo health``: unhealthy GPUs, with the repair, nodes without an agent, and whether the driver is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.objects import Node
from dradriver.api.claims.pins import Claim
from dradriver.cli.cluster import access, cluster_reading, cluster_view, driver_dependents, gpu_faults, installation
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    namespace_options,
    only_namespace,
    output_options,
    server_options,
)
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.driver_dependents import Dependent
from dradriver.cli.cluster.gpu_faults import GpuFault
from dradriver.cli.cluster.installation import Installation
from dradriver.cli.verifier import agent_checks
from dradriver.cli.verifier.agent_checks import MissingAgent
from dradriver.cli.verifier.driver_pods import SELECTOR, Pod
from dradriver.cluster.records.records import read_node
from dradriver.cluster.views.holder_names import Holder
from dradriver.counted import counted
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import NODES, PODS
from dradriver.view.document import Cell, Column, Document, Notes, Table, Tone, report, words
from dradriver.view.output import show_as, warn
from dradriver.view.terminal_text import plain

_LEFT_OVER: Final = (
    "ResourceSlices of the driver are left over. Wait: the kubelet of a node deletes them about 30 seconds after the "
    "node agent has ended"
)
_UNDELETED: Final = (
    "the kubelet of {node} does not report, so its ResourceSlices stay until it starts again. Delete them: kubectl "
    f"delete resourceslices --field-selector spec.driver={names.DRIVER},spec.nodeName={{node}}"
)
_MOST_NODES: Final = 5  # that get a line each
_AGENTS_MISSING: Final = (
    "node agents are missing or not ready. On their nodes, pods with GPUs cannot start or end. Repairs are below"
)
_NOT_CHECKED: Final = 2  # the exit status if the cluster could not be looked at


class _Read(NamedTuple):
    """The objects from which the health of a cluster follows.

    Attributes:
        slices: The ResourceSlices of the driver that allocates the GPUs.
        claims: All claims.
        nodes: All nodes.
        driver: The driver's installation.
        agents: The pods of the node agents; None if they could not be read.
        orphans: The pods that need the driver although it is not installed.
    """

    slices: Sequence[ResourceSlice]
    claims: Sequence[Claim]
    nodes: Sequence[Node]
    driver: Installation
    agents: Sequence[Pod] | None
    orphans: Sequence[Dependent]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a cluster's GPUs. All text in it is safe to print.

    Attributes:
        healthy: Whether the driver is installed, no GPU is unhealthy, and no agent is missing.
        installed: Whether the driver's namespace has a DaemonSet of node agents; None if that is not known.
        nodes: Number of nodes with GPUs.
        gpus: Number of GPUs on these nodes.
        unhealthy: Number of GPUs that are lost, or that no pod can get because of a fault.
        faults: The faults of all GPUs, also faults that keep no pod off the GPU.
        agents: The node agents that are missing; empty if the driver is not installed.
        orphans: Number of pods that need the driver although it is not installed.
        left_over: Nodes whose slices are left over from a driver that is not installed any more.
        undeleted: Those of these nodes whose kubelet does not report, so that nothing deletes the slices.
    """

    healthy: bool
    installed: bool | None
    nodes: int
    gpus: int
    unhealthy: int
    faults: tuple[GpuFault, ...]
    agents: tuple[MissingAgent, ...]
    orphans: int = 0
    left_over: tuple[str, ...] = ()
    undeleted: tuple[str, ...] = ()


@click.command()
@namespace_options("Only GPUs that this namespace uses. Default: all namespaces.")
@driver_namespace_option
@server_options
@output_options
def health(
    namespace: str | None,
    all_namespaces: bool,
    driver_namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the unhealthy GPUs with the repair of each, and the nodes without an agent.

    A GPU is unhealthy if a fault keeps pods off it. Other faults, such as clocks lowered by heat, are listed, too.

    "gputopo verify" is about the installation: webhook, controller, certificates, policies and more.

    Exit status: 0 no problem, 1 a GPU is unhealthy, an agent is missing or the driver is not installed, 2 wrong usage,
    or the cluster cannot be read.
    """
    only = only_namespace(namespace, all_namespaces=all_namespaces)
    try:
        server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
        read = asyncio.run(_read(server, driver_namespace, only))
        found = _health(server, read, only)
    except DriverError as error:
        click.echo(f"Error: {plain(str(error))}", err=True)
        raise click.exceptions.Exit(_NOT_CHECKED) from None
    installation.tell(read.driver.absence, output, no_color=no_color)
    show_as(output, document=lambda: document(found), data=lambda: msgspec.to_builtins(found), no_color=no_color)
    if not found.healthy:
        raise click.exceptions.Exit(1)


async def _read(server: ServerConfig, named_namespace: str | None, only: str | None) -> _Read:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        slices, claims = await cluster_reading.read(client, server)
        nodes = await cluster_reading.listed(client, server, NODES, read_node)
        driver = await installation.read(client, server, named_namespace)
        agents: list[dict[str, Any]] | None = None
        unread = driver.unread
        try:
            agents = await cluster_reading.listed(
                client, server, PODS, dict, namespace=driver.namespace, label_selector=SELECTOR
            )
        except ClusterError as error:
            unread = unread or str(error)
        if unread:
            warn(f"whether all node agents are ready is not known: {unread}")
        orphans: list[Dependent] = []
        if driver.absence:
            try:
                pods = await cluster_reading.listed(client, server, PODS, driver_dependents.Pod)
                dependents = driver_dependents.dependents(pods, claims)
                orphans = [pod for pod in dependents if only in (None, pod.namespace)]
            except ClusterError as error:
                warn(f"whether pods need the driver is not known: {error}")
    return _Read(slices, claims, nodes, driver, agents, orphans)


def _health(server: ServerConfig, read: _Read, only: str | None) -> Health:
    """Return the health of a cluster's GPUs.

    If ``only`` names a namespace, only GPUs that this namespace uses count. ``server`` is for messages.

    Raises:
        ClusterError: The cluster has nothing to look at, although no driver is known to be missing.
    """
    views, doubts = cluster_view.views(read.slices, read.claims)
    node_names = {node.metadata.name for node in read.nodes}
    gone = cluster_view.gone_views(read.slices, read.claims, is_node=node_names.__contains__)
    for doubt in doubts:
        warn(doubt)
    gpus_of_node = [view.users for view in views]
    gpus_of_node += [[holders for _, holders in node.gpus] for node in gone]
    faults = [fault for view in views for fault in gpu_faults.of_node(view)]
    if only is not None:
        gone = [node for node in gone if any(_is_of(only, holders) for _, holders in node.gpus)]
        gpus_of_node = [[holders for holders in gpus if _is_of(only, holders)] for gpus in gpus_of_node]
        faults = [fault for fault in faults if only in fault.namespaces]
    agents: list[MissingAgent] = []
    if not read.driver.absence:  # else all are missing, and only an installation helps
        pods: Sequence[Pod] = ()
        wanted = 0
        if only is None and read.agents is not None:
            pods, wanted = read.agents, agent_checks.desired(read.driver.daemon_sets)
        agents = agent_checks.missing(gone, pods, wanted, read.driver.namespace)
        if not (read.slices or agents):
            raise ClusterError(cluster_reading.nothing_published(server))
    unhealthy = {(fault.node, fault.uuid) for fault in faults if fault.keeps_pods_off}
    left_over = {view.name for view in views} if read.driver.absence else set[str]()
    return Health(
        healthy=not (unhealthy or agents or read.driver.absence),
        installed=read.driver.exists,
        nodes=sum(map(bool, gpus_of_node)),
        gpus=sum(map(len, gpus_of_node)),
        unhealthy=len(unhealthy),
        faults=tuple(faults),
        agents=tuple(agents),
        orphans=len(read.orphans),
        left_over=tuple(sorted(left_over)),
        undeleted=tuple(sorted(left_over & _silent(read.nodes))),
    )


def _silent(nodes: Iterable[Node]) -> set[str]:
    """Return the nodes whose kubelet does not report, so that it does not delete slices either.

    A kubelet deletes the slices of a driver whose plugin has been gone for 30 seconds (pkg/kubelet/cm/dra/plugin). If
    the Node is gone, the garbage collector deletes its slices.
    """
    return {
        plain(node.metadata.name)
        for node in nodes
        for condition in node.status.conditions
        if condition.type == "Ready" and condition.status == "Unknown"
    }


def _is_of(namespace: str, holders: Iterable[Holder]) -> bool:
    return any(holder.namespace == namespace for holder in holders)


def document(health: Health) -> Document:
    """Return the output of ``gputopo health``: the counts, the faults, and the nodes without an agent."""
    of_all = f"{counted(health.gpus, 'GPU')} on {counted(health.nodes, 'node')}"
    are = "is" if health.unhealthy == 1 else "are"
    unhealthy = Cell(f"{health.unhealthy} of {of_all} {are} unhealthy", Tone.ERROR if health.unhealthy else Tone.FREE)
    has_problem = bool(health.agents) or health.installed is False
    # If no node publishes a GPU because of another problem, "0 of 0 are unhealthy" would say that all is well.
    is_published = bool(health.gpus) if health.installed is not False else bool(health.left_over)
    lines = [Cell("no node publishes GPUs", Tone.ERROR) if has_problem and not is_published else unhealthy]
    if health.left_over:
        lines.append(Cell(_LEFT_OVER, Tone.WARNING))
        lines += [Cell(_UNDELETED.format(node=node), Tone.ERROR) for node in health.undeleted[:_MOST_NODES]]
    if health.orphans:
        need = counted(health.orphans, "pod needs", "pods need")
        lines.append(Cell(f"{need} the driver. gputopo uninstall lists them and says what to do", Tone.ERROR))
    if health.agents:
        lines.append(Cell(_AGENTS_MISSING, Tone.ERROR))
    elif health.installed is not False:
        lines.append(Cell("no node agent is missing", Tone.FREE))
    fault_rows = tuple(
        (
            *words(fault.node, "" if fault.index is None else f"GPU{fault.index}", fault.pci, fault.uuid),
            Cell(fault.fault, Tone.ERROR if fault.keeps_pods_off else Tone.WARNING),
            *words(", ".join(fault.holders), fault.words, fault.repair),
        )
        for fault in health.faults
    )
    heads = ("node", "GPU", "PCI address", "UUID", "fault", "used by", "description", "repair")
    agent_rows = tuple(words(agent.node, agent.why, agent.repair) for agent in health.agents)
    return report(
        Notes(lines=tuple(lines)),
        Table(title="Faults", columns=tuple(map(Column, heads)), rows=fault_rows),
        Table(title="Missing agents", columns=tuple(map(Column, ("node", "why", "repair"))), rows=agent_rows),
    )
