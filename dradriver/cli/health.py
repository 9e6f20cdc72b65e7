"""``gputopo health``: GPUs that are unhealthy, with the repair, and nodes without an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from dradriver import __version__
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.claims.pins import Claim
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

_NOT_CHECKED: Final = 2  # the exit status if the cluster could not be looked at


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a cluster's GPUs. All text in it is safe to print.

    Attributes:
        healthy: Whether no GPU is unhealthy and no agent is missing.
        nodes: How many nodes have GPUs.
        gpus: How many GPUs these have.
        unhealthy: How many GPUs no pod can get because of their health, or are lost.
        faults: What is wrong with which GPU, also faults that keep no pod off it.
        agents: The node agents that are missing.
    """

    healthy: bool
    nodes: int
    gpus: int
    unhealthy: int
    faults: tuple[GpuFault, ...]
    agents: tuple[MissingAgent, ...]


@click.command()
@namespace_options("Only GPUs that this namespace holds; else all.")
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
    """List the GPUs with a fault, each with the repair, and the nodes without an agent.

    A fault that keeps pods off the GPU makes it unhealthy. Others, such as clocks lowered by heat, are only listed.

    Exit status: 0 no GPU is unhealthy and no agent is missing, 1 one is, 2 wrong usage, or it could not be looked at.
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
        namespace = await policies_in_force.driver_namespace(client, named_namespace)
        pods: list[dict[str, Any]] = []
        wanted = 0
        try:
            pods = await cluster_reading.listed(
                client, server, PODS, dict, namespace=namespace, label_selector=SELECTOR
            )
            daemon_sets: list[dict[str, Any]] = await cluster_reading.listed(
                client, server, DAEMON_SETS, dict, namespace=namespace, label_selector=SELECTOR
            )
            wanted = agent_checks.desired(daemon_sets)
        except ClusterError as error:
            warn(f"whether all node agents are ready is not known: {error}")
    node_names = {node.metadata.name for node in nodes}
    return _health(server, slices, claims, node_names, pods, wanted, namespace, only)


def _health(
    server: ServerConfig,
    slices: Sequence[ResourceSlice],
    claims: Sequence[Claim],
    node_names: set[str],
    pods: Sequence[Pod],
    wanted: int,
    namespace: str,
    only: str | None,
) -> Health:
    """Return the health of a cluster by what was read of it, of one namespace's GPUs if ``only`` names it."""
    views, doubts = cluster_view.views(slices, claims)
    gone = cluster_view.gone_views(slices, claims, is_node=node_names.__contains__)
    for doubt in doubts:
        warn(doubt)
    gpus_of_node = [[gpu.taken_by for gpu in view.gpus] + [()] * len(view.lost) for view in views]
    gpus_of_node += [[holders for _, holders in node.gpus] for node in gone]
    faults = [fault for view in views for fault in gpu_faults.of_node(view)]
    if only is not None:
        gone = [node for node in gone if any(_is_of(only, holders) for _, holders in node.gpus)]
        gpus_of_node = [[holders for holders in gpus if _is_of(only, holders)] for gpus in gpus_of_node]
        faults = [fault for fault in faults if only in fault.namespaces]
    agents = agent_checks.missing(gone, pods if only is None else (), wanted if only is None else 0, namespace)
    if not slices and not agents:
        raise ClusterError(cluster_reading.nothing_published(server))
    unhealthy = {(fault.node, fault.index) for fault in faults if fault.keeps_pods_off}
    return Health(
        healthy=not (unhealthy or agents),
        nodes=sum(map(bool, gpus_of_node)),
        gpus=sum(map(len, gpus_of_node)),
        unhealthy=len(unhealthy),
        faults=tuple(faults),
        agents=tuple(agents),
    )


def _is_of(namespace: str, holders: Iterable[Holder]) -> bool:
    return any(holder.namespace == namespace for holder in holders)


def document(health: Health) -> Document:
    """Return what ``gputopo health`` prints: the counts, the faults, and the nodes without an agent."""
    of_all = f"{counted(health.gpus, 'GPU')} on {counted(health.nodes, 'node')}"
    are = "is" if health.unhealthy == 1 else "are"
    lines = [
        Cell(f"{health.unhealthy} of {of_all} {are} unhealthy", Tone.ERROR if health.unhealthy else Tone.FREE),
        Cell(counted(len(health.agents), "node agent is missing", "node agents are missing"), Tone.ERROR)
        if health.agents
        else Cell("no node agent is missing", Tone.FREE),
    ]
    fault_rows = tuple(
        (
            *words(fault.node, f"GPU{fault.index}", fault.pci, fault.uuid),
            Cell(fault.fault, Tone.ERROR if fault.keeps_pods_off else Tone.WARNING),
            *words(", ".join(fault.holders), fault.words, fault.repair),
        )
        for fault in health.faults
    )
    heads = ("node", "GPU", "PCI address", "UUID", "fault", "held by", "what it is", "repair")
    agent_rows = tuple(words(agent.node, agent.why, agent.repair) for agent in health.agents)
    return report(
        Notes(lines=tuple(lines)),
        Table(title="Faults", columns=tuple(map(Column, heads)), rows=fault_rows),
        Table(title="Missing agents", columns=tuple(map(Column, ("node", "why", "repair"))), rows=agent_rows),
    )
