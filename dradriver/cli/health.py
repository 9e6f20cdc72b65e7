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
from dradriver.api.claims.pins import Claim
from dradriver.cli import uninstall
from dradriver.cli.cluster import access, cluster_reading, cluster_view, gpu_faults, policies_in_force
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    namespace_options,
    only_namespace,
    output_options,
    server_options,
)
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.gpu_faults import GpuFault
from dradriver.cli.verifier import agent_checks
from dradriver.cli.verifier.agent_checks import MissingAgent
from dradriver.cli.verifier.driver_pods import SELECTOR, Pod
from dradriver.cluster.records.records import read_node
from dradriver.cluster.views.holder_names import Holder
from dradriver.counted import counted
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import DAEMON_SETS, NODES, PODS
from dradriver.view.document import Cell, Column, Document, Notes, Table, Tone, report, words
from dradriver.view.output import show_as, warn
from dradriver.view.terminal_text import plain

_NOT_INSTALLED: Final = (
    "the driver is not installed: it has no pod and no DaemonSet. Install the chart, or name its namespace: "
    "--driver-namespace NAME"
)
_LEFT_OVER: Final = (
    "the ResourceSlices of the driver are left over, so the scheduler can still allocate these GPUs: kubectl delete "
    f"resourceslices --field-selector spec.driver={names.DRIVER}"
)
_AGENTS_MISSING: Final = (
    "node agents are missing or not ready. On their nodes, pods with GPUs cannot start or end. Repairs are below"
)
_NOT_CHECKED: Final = 2  # the exit status if the cluster could not be looked at


class _Installation(NamedTuple):
    """The driver's pods and DaemonSets in its namespace.

    Attributes:
        namespace: The namespace.
        agents: The pods of the node agents.
        agents_wanted: How many nodes must have an agent.
        exists: Whether there are pods or DaemonSets of the driver; None if that is not known.
    """

    namespace: str
    agents: Sequence[Pod] = ()
    agents_wanted: int = 0
    exists: bool | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a cluster's GPUs. All text in it is safe to print.

    Attributes:
        healthy: Whether the driver is installed, no GPU is unhealthy, and no agent is missing.
        installed: Whether the driver's namespace has pods or DaemonSets of the driver; None if that is not known.
        nodes: Number of nodes with GPUs.
        gpus: Number of GPUs on these nodes.
        unhealthy: Number of GPUs that are lost, or that no pod can get because of a fault.
        faults: The faults of all GPUs, also faults that keep no pod off the GPU.
        agents: The node agents that are missing.
        orphans: Number of pods that need the driver although it is not installed.
    """

    healthy: bool
    installed: bool | None
    nodes: int
    gpus: int
    unhealthy: int
    faults: tuple[GpuFault, ...]
    agents: tuple[MissingAgent, ...]
    orphans: int = 0


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

    Exit status: 0 no problem, 1 a GPU is unhealthy, an agent is missing or the driver is not installed, 2 wrong usage,
    or the cluster cannot be read.
    """
    only = only_namespace(namespace, all_namespaces=all_namespaces)
    try:
        server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
        found = asyncio.run(_read(server, driver_namespace, only))
    except DriverError as error:
        click.echo(f"Error: {plain(str(error))}", err=True)
        raise click.exceptions.Exit(_NOT_CHECKED) from None
    show_as(output, document=lambda: document(found), data=lambda: msgspec.to_builtins(found), no_color=no_color)
    if not found.healthy:
        raise click.exceptions.Exit(1)


async def _read(server: ServerConfig, named_namespace: str | None, only: str | None) -> Health:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        slices, claims = await cluster_reading.read(client, server)
        nodes = await cluster_reading.listed(client, server, NODES, read_node)
        namespace, is_certain = await policies_in_force.locate(client, named_namespace)
        installation = _Installation(namespace)
        try:
            pods: list[dict[str, Any]] = await cluster_reading.listed(
                client, server, PODS, dict, namespace=namespace, label_selector=SELECTOR
            )
            daemon_sets: list[dict[str, Any]] = await cluster_reading.listed(
                client, server, DAEMON_SETS, dict, namespace=namespace, label_selector=SELECTOR
            )
            # Another namespace can have the driver if this one is a guess.
            exists = True if pods or daemon_sets else False if is_certain else None
            installation = _Installation(namespace, pods, agent_checks.desired(daemon_sets), exists)
        except ClusterError as error:
            warn(f"whether all node agents are ready is not known: {error}")
        orphans: list[uninstall.Dependent] = []
        if installation.exists is False:
            try:
                all_pods = await cluster_reading.listed(client, server, PODS, uninstall.Pod)
                orphans = [pod for pod in uninstall.dependents(all_pods, claims) if only in (None, pod.namespace)]
            except ClusterError as error:
                warn(f"whether pods need the driver is not known: {error}")
    node_names = {node.metadata.name for node in nodes}
    return _health(server, slices, claims, node_names, installation, len(orphans), only)


def _health(
    server: ServerConfig,
    slices: Sequence[ResourceSlice],
    claims: Sequence[Claim],
    node_names: set[str],
    installation: _Installation,
    orphans: int,
    only: str | None,
) -> Health:
    """Return the health of a cluster's GPUs from the objects that were read.

    The first five arguments are these objects. If ``only`` names a namespace, only GPUs that this namespace uses count.
    ``orphans`` is the number of pods that need the driver although it is not installed.
    """
    views, doubts = cluster_view.views(slices, claims)
    gone = cluster_view.gone_views(slices, claims, is_node=node_names.__contains__)
    for doubt in doubts:
        warn(doubt)
    gpus_of_node = [view.users for view in views]
    gpus_of_node += [[holders for _, holders in node.gpus] for node in gone]
    faults = [fault for view in views for fault in gpu_faults.of_node(view)]
    if only is not None:
        gone = [node for node in gone if any(_is_of(only, holders) for _, holders in node.gpus)]
        gpus_of_node = [[holders for holders in gpus if _is_of(only, holders)] for gpus in gpus_of_node]
        faults = [fault for fault in faults if only in fault.namespaces]
    pods, wanted = (installation.agents, installation.agents_wanted) if only is None else ((), 0)
    agents = agent_checks.missing(gone, pods, wanted, installation.namespace)
    if not (slices or agents or orphans):
        raise ClusterError(cluster_reading.nothing_published(server))
    unhealthy = {(fault.node, fault.uuid) for fault in faults if fault.keeps_pods_off}
    return Health(
        healthy=not (unhealthy or agents) and installation.exists is not False,
        installed=installation.exists,
        nodes=sum(map(bool, gpus_of_node)),
        gpus=sum(map(len, gpus_of_node)),
        unhealthy=len(unhealthy),
        faults=tuple(faults),
        agents=tuple(agents),
        orphans=orphans,
    )


def _is_of(namespace: str, holders: Iterable[Holder]) -> bool:
    return any(holder.namespace == namespace for holder in holders)


def document(health: Health) -> Document:
    """Return the output of ``gputopo health``: the counts, the faults, and the nodes without an agent."""
    of_all = f"{counted(health.gpus, 'GPU')} on {counted(health.nodes, 'node')}"
    are = "is" if health.unhealthy == 1 else "are"
    unhealthy = Cell(f"{health.unhealthy} of {of_all} {are} unhealthy", Tone.ERROR if health.unhealthy else Tone.FREE)
    has_problem = bool(health.agents) or health.installed is False
    # If no node publishes a GPU because of another problem, "0 of 0 are unhealthy" would say that all is well.
    lines = [Cell("no node publishes GPUs", Tone.ERROR) if has_problem and not health.gpus else unhealthy]
    if health.installed is False:
        lines.append(Cell(_NOT_INSTALLED, Tone.ERROR))
        if health.gpus:
            lines.append(Cell(_LEFT_OVER, Tone.ERROR))
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
