"""``gputopo topo --cluster``: a table of nodes, or each node in detail with its machine and the users of its GPUs.

The agent of a node is *gone* if pods use GPUs of the node, and the node has no slices any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from dradriver import __version__
from dradriver.allocator import MAX_GPUS
from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.claims.pins import Claim
from dradriver.cli import machine_view
from dradriver.cli.cluster import access, cluster_reading, installation
from dradriver.cli.cluster.cluster_lists import Lists
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cluster.gpus.taint_rules import TaintRules, read_rule
from dradriver.cluster.nodes.node_table import why_closed
from dradriver.cluster.records.records import read_node
from dradriver.cluster.views import gone_node_views, node_views
from dradriver.cluster.views.gone_node_views import AGENT_GONE, GoneNode
from dradriver.cluster.views.holder_names import Hold, Holder
from dradriver.cluster.views.node_views import GpuView, LostView, NodeView, NotOffered
from dradriver.counted import counted, first_of
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.reflector import Change
from dradriver.kube.resources import DEVICE_TAINT_RULES, NODES
from dradriver.queue import reservation_access
from dradriver.topology.natural import natural
from dradriver.view.document import Cell, Column, Document, Entry, Key, Mark, Notes, Section, Table, Tone, report
from dradriver.view.output import show_as, warn
from dradriver.view.terminal_text import plain

T = TypeVar("T", NodeView, GoneNode)

_SUMMARY = ("node", "product", "GPUs", "free", "unhealthy", "largest free linked set")
_MOST_HOLDERS: Final = 2  # that a row of the table of nodes names
_TONES = {
    "free": Tone.FREE, "tentative": Tone.PROMISED, "unhealthy": Tone.BLOCKED, "blocked": Tone.BLOCKED,
    "unavailable": Tone.BLOCKED, "reserved": Tone.BLOCKED, "fractions": Tone.BLOCKED,
}  # fmt: skip


def show_cluster(
    *,
    kubeconfig: str | None,
    context: str | None,
    nodes: Sequence[str],
    detail: bool,
    namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the view of a cluster: its nodes with the users of their GPUs. Warnings go to stderr.

    A node whose agent is gone has no slices, so its machine is not known. Such a node is shown with the users of its
    GPUs.

    Args:
        kubeconfig: The user's kubeconfig file; None for the default file.
        context: The context in it; None for the current one.
        nodes: Names of the nodes to show, in detail; all if empty.
        detail: Whether to show all nodes in detail, with their matrices. Image formats always show details.
        namespace: Show only nodes with GPUs that claims of this namespace have; None shows all.
        output: The format.
        no_color: Whether to print without colours.

    Raises:
        ConfigError: No usable kubeconfig or service account was found.
        ClusterError: The cluster cannot be read, or there is nothing to show.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    # A node agent publishes the slices of its node. ``doubts``: sentences on what could not be found out.
    slices, claims, nodes_without_agent, not_offered, doubts, absence = asyncio.run(_read(server))
    if not slices and not nodes_without_agent:
        raise cluster_reading.ClusterError(absence or cluster_reading.nothing_published(server))

    shown_without_agent = [node for node in nodes_without_agent if not nodes or node.name in nodes]
    names_with_agent = [name for name in nodes if name not in {node.name for node in nodes_without_agent}]
    shown: list[NodeView] = []
    warnings: list[str] = []
    # ``views`` makes a view of each node from slices and claims: its machine, and the holders of each GPU.
    if names_with_agent or not nodes:  # else only nodes without an agent are named, and empty names mean all
        shown, warnings = views(slices, claims, only=names_with_agent, not_offered=not_offered)
    for warning in (*doubts, *warnings):
        warn(warning)

    if not shown and not shown_without_agent:
        known = {
            resource_slice.spec.pool.name for resource_slice in slices if resource_slice.spec.driver == names.DRIVER
        }
        listed = ", ".join(sorted(known, key=natural))
        raise cluster_reading.ClusterError(f"there is nothing to show. Nodes with slices of this driver: {listed}")
    if namespace is not None:
        shown = [
            node
            for node in shown
            if any(
                holder.namespace == namespace
                for holders in (*(view.holders for view in node.gpus), *(gpu.holders for gpu in node.lost))
                for holder in holders
            )
        ]
        shown_without_agent = [
            node
            for node in shown_without_agent
            if any(holder.namespace == namespace for _, holders in node.gpus for holder in holders)
        ]
        if not shown and not shown_without_agent:
            raise cluster_reading.ClusterError(f"no claim of namespace {namespace} has a GPU")
    installation.tell(absence, output, no_color=no_color)
    show_as(
        output,
        document=lambda: (
            document(shown, shown_without_agent)
            if nodes or detail or output != "table"
            else table_of_nodes(shown, shown_without_agent)
        ),
        data=lambda: data(shown, shown_without_agent),
        no_color=no_color,
    )


async def _read(
    server: ServerConfig,
) -> tuple[list[ResourceSlice], list[Claim], list[GoneNode], NotOffered, list[str], str]:
    """Return slices, claims, nodes whose agent is gone, GPUs that new pods do not get, warnings, and absence.

    GPUs that new pods do not get are tainted, reserved, or on nodes that take no new pods. A warning names objects that
    could not be read. The last text says that no driver is installed. It is empty if a driver is installed, or if
    that is not known. All text in the nodes, GPUs and warnings is safe to print.
    """
    reservations = Own()
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        pieces, claims = await cluster_reading.read(client, server)
        suspects = gone_node_views.views(pieces, claims, is_node=lambda _: True)
        driver = await installation.read(client, server, None)
        await reservations.read_reservations(client, server, driver.namespace)
        reserved: dict[str, dict[str, str]] = {}
        for held in reservations.reserved:
            for node, device in held.gpus:
                reserved.setdefault(node, {})[device] = "/".join(reservation_access.key_of(held.who))
        lists, taint_rules = Lists(client, server), TaintRules()
        for rule in await lists.optional(DEVICE_TAINT_RULES, read_rule):
            taint_rules.rule_changed(Change(("", rule.metadata.name), None, rule))
        unread = [*reservations.unread, *lists.unread]
        try:
            nodes = await cluster_reading.listed(client, server, NODES, read_node)
        except cluster_reading.ClusterError as error:
            doubt = f"whether nodes take new pods is not known: {error}"
            if suspects:
                named = ", ".join(node.name for node in suspects)
                doubt = f"claims have GPUs of {named}, which have no slices: agent gone, or node removed? {error}"
            not_offered = NotOffered(reserved=reserved, taint_rules=taint_rules)
            return pieces, claims, [], not_offered, [*unread, plain(doubt)], driver.absence
    closed = {node.metadata.name: why for node in nodes if (why := why_closed(node))}
    there = {node.metadata.name for node in nodes}
    gone = [_plain_as(node, GoneNode) for node in suspects if node.name in there]
    not_offered = NotOffered(closed=closed, reserved=reserved, taint_rules=taint_rules)
    return pieces, claims, gone, not_offered, unread, driver.absence


def views(
    pieces: Iterable[ResourceSlice],
    claims: Iterable[Claim],
    *,
    only: Iterable[str] = (),
    not_offered: NotOffered = NotOffered(),  # noqa: B008 - it is frozen
) -> tuple[list[NodeView], list[str]]:
    """Return the nodes of the cluster view and the warnings about them.

    ``pieces`` are the slices of all drivers, ``claims`` those of all namespaces. ``only`` are the names of the nodes to
    show; all nodes if it is empty. ``not_offered`` has the GPUs that new pods do not get. All text in the result is
    safe to print: users choose the names of pods, claims and machines, and a terminal obeys escape sequences.
    """
    shown, warnings = node_views.views(pieces, claims, only=only, not_offered=not_offered)
    return [_plain_as(node, NodeView) for node in shown], list(map(plain, warnings))


def gone_views(
    pieces: Iterable[ResourceSlice], claims: Iterable[Claim], *, is_node: Callable[[str], bool]
) -> list[GoneNode]:
    """Return the nodes whose agent is gone, for the cluster view.

    ``pieces`` are the slices of all drivers, ``claims`` the claims of all namespaces. ``is_node`` returns whether the
    cluster has a node of this name. All text in the result is safe to print.
    """
    return [_plain_as(node, GoneNode) for node in gone_node_views.views(pieces, claims, is_node=is_node)]


def _plain_as(value: T, kind: type[T]) -> T:
    return msgspec.convert(_plain(msgspec.to_builtins(value)), kind)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def document(nodes: Sequence[NodeView], gone: Sequence[GoneNode] = ()) -> Document:
    """Return the output of ``gputopo topo --cluster --detail``; a user of GPUs has the same colour on all nodes.

    ``gone`` are the nodes whose agent is gone.
    """
    key = _key(nodes)
    series = {entry.name: entry.series for entry in key.entries}
    rows = (*(tuple(map(Cell, _summary(node))) for node in nodes), *map(_gone_summary, gone))
    sections = [Section(blocks=(Table(columns=_columns(*_SUMMARY), rows=rows), key))]
    for node in nodes:
        sections += _node(node, series)
    sections += map(_gone_section, gone)
    kinds = {node.machine.vendor: node.machine for node in nodes}
    sections.append(Section(folded="Legend of the matrix", blocks=tuple(map(machine_view.legend, kinds.values()))))
    return Document(title=_title(nodes, gone), sections=tuple(sections))


def table_of_nodes(nodes: Sequence[NodeView], gone: Sequence[GoneNode] = ()) -> Document:
    """Return the output of ``gputopo topo --cluster``: a row for each node, with the first users of its GPUs.

    ``gone`` are the nodes whose agent is gone.
    """
    rows = [(*map(Cell, _summary(node)), Cell(_holders_in_row(node.users))) for node in nodes]
    rows += [(*_gone_summary(node), Cell(_holders_in_row(holders for _, holders in node.gpus))) for node in gone]
    title = _title(nodes, gone)
    lost = tuple(Cell(lost_line(gpu, f"{node.name} "), Tone.ERROR) for node in nodes for gpu in node.lost)
    return report(
        Table(columns=_columns(*_SUMMARY, "used by"), rows=tuple(rows)),
        Notes(lines=lost),
        Notes(lines=(Cell(f"{title}. --node NAME or --detail shows the links, and which pods use which GPU."),)),
        title=title,
    )


def _columns(*heads: str) -> tuple[Column, ...]:
    return tuple(Column(head, number=head in ("GPUs", "free", "unhealthy")) for head in heads)


def _title(nodes: Sequence[NodeView], gone: Sequence[GoneNode]) -> str:
    gpus, free = sum(node.count for node in nodes), sum(len(node.free) for node in nodes)
    title = f"{counted(len(nodes), 'node')}, {counted(gpus, 'GPU')}, {free} free"
    if unhealthy := sum(node.unhealthy for node in nodes):
        title += f", {unhealthy} unhealthy"
    return title + (f"; {AGENT_GONE} on {counted(len(gone), 'node')}" if gone else "")


def _holders_in_row(holders: Iterable[Iterable[Holder]]) -> str:
    """Return the first users of a node's GPUs for its table row, and how many more there are.

    ``holders`` has the users of each GPU.
    """
    named = sorted({holder.who for each in holders for holder in each}, key=natural)
    return first_of(named, _MOST_HOLDERS)


def gone_document(node: GoneNode) -> Document:
    """Return the view of one node whose agent is gone: the reason, the repair, and the users of its GPUs."""
    return Document(title=f"{node.name}: {AGENT_GONE}", sections=(_gone_section(node),))


def _gone_summary(node: GoneNode) -> tuple[Cell, ...]:
    return Cell(node.name), Cell(AGENT_GONE, Tone.ERROR), Cell(str(len(node.gpus))), Cell("0"), Cell(""), Cell("none")


def _gone_section(node: GoneNode) -> Section:
    rows = tuple(
        (Cell("" if n else device), Cell(holder.words), Cell(holder.claim))
        for device, holders in node.gpus
        for n, holder in enumerate(holders)
    )
    table = Table(title="Used by", columns=(Column("device"), Column("pods"), Column("claim")), rows=rows)
    look = f"kubectl get pods -A -l app.kubernetes.io/component=node --field-selector spec.nodeName={node.name}"
    lines = (Cell(node.why, Tone.ERROR), Cell(f"Look at its node agent: {look}"))
    return Section(title=f"Node: {node.name}", blocks=(Notes(lines=lines), table))


def _summary(node: NodeView) -> tuple[str, ...]:
    return (
        node.name,
        node.machine.product,
        str(node.count),
        str(len(node.free)),
        str(node.unhealthy or ""),
        nvlink_set(node),
    )


def nvlink_set(node: NodeView) -> str:
    """Return the text for a node's largest free NVLink set: its GPUs and bandwidth.

    The text is ``none`` if the node has no such set, with the cause if the node accepts no new pods. For a node with
    more than ``MAX_GPUS`` GPUs it is ``not known ...``.
    """
    largest = node.nvlink_set
    if largest is not None:
        gpus = " ".join(f"GPU{index}" for index in largest.gpus)
        return f"{len(largest.gpus)}: {gpus}" + (
            f" ({largest.busbw_gbps:g} GB/s all-reduce)" if largest.busbw_gbps else ""
        )
    if len(node.gpus) > MAX_GPUS:
        return f"not known above {MAX_GPUS} GPUs"
    closed = next((gpu.closed for gpu in node.gpus if gpu.closed), "")
    return f"none ({closed})" if closed else "none"


def _key(nodes: Sequence[NodeView]) -> Key:
    """Return the table of the users of GPUs: for each user, the nodes and the GPUs that it uses.

    Pods that only monitor a GPU (admin access) are left out, because they allocate nothing.
    """
    held: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        for view in node.gpus:
            for who in dict.fromkeys(holder.who for holder in view.taken_by):
                held.setdefault(who, {}).setdefault(node.name, []).append(f"GPU{view.gpu.index}")
        for lost in node.lost:
            for who in dict.fromkeys(holder.who for holder in lost.holders):
                held.setdefault(who, {}).setdefault(node.name, []).append(f"{lost.label} (lost)")
    entries = (
        Entry(series=n, name=who, where="; ".join(f"{name} {' '.join(gpus)}" for name, gpus in where.items()))
        for n, (who, where) in enumerate(sorted(held.items(), key=lambda item: natural(item[0])))
    )
    return Key(title="Users of GPUs", heads=("pods", "GPUs"), entries=tuple(entries))


def _node(node: NodeView, series: Mapping[str, int]) -> list[Section]:
    title = f"{node.name}: {machine_view.what(node.machine)}, {len(node.free)} free"
    marks = tuple(_mark(view, series) for view in node.gpus)
    picture = machine_view.matrix(node.machine, node.groups, title=title, marks=marks, marked="used by")
    lost = Notes(lines=tuple(Cell(lost_line(gpu), Tone.ERROR) for gpu in node.lost))
    blocks = (_holders(node), lost, picture) if node.lost else (_holders(node), picture)
    return [
        Section(title=f"Node: {node.name}", blocks=blocks),
        Section(folded="Groups and devices", blocks=tuple(machine_view.facts(node.machine, node.groups))),
    ]


def lost_line(gpu: LostView, node: str = "") -> str:
    """Return the line about a lost GPU: its identity, its pods and the next step. ``node`` is written before it."""
    return f"lost: {node}{gpu.described}. Repair: gputopo health"


def _lines(view: GpuView) -> list[tuple[str, str]]:
    """Return the lines of text about a GPU, each with the name of its claim.

    First comes a line that the GPU is free, or why it cannot be allocated; its claim is empty. Then comes a line for
    each user.
    """
    alone = view.blocked if view.taken_by else view.why_not_free or "free"
    return [(alone, "")] * bool(alone) + [(holder.words, holder.claim) for holder in view.holders]


def _mark(view: GpuView, series: Mapping[str, int]) -> Mark:
    lines = _lines(view)
    return Mark(
        text="; ".join(words for words, _ in lines),
        more="; ".join(f"{words} claim {claim}" if claim else words for words, claim in lines),
        tone=_TONES.get(view.state, Tone.PLAIN),
        series=series[view.taken_by[0].who] if view.taken_by else None,
    )


def _holders(node: NodeView) -> Table:
    rows = []
    for view in node.gpus:
        for n, (words, claim) in enumerate(_lines(view)):
            gpu = ("", "", "") if n else (view.gpu.label, view.gpu.uuid, view.gpu.pci)
            tone = Tone.PLAIN if n else _TONES.get(view.state, Tone.PLAIN)
            rows.append((*map(Cell, gpu), Cell(words, tone), Cell(claim)))
    columns = (
        Column("GPU"), Column("uuid", detail=True), Column("bus id", detail=True), Column("used by"), Column("claim"),
    )  # fmt: skip
    return Table(title="Users of the GPUs", columns=columns, rows=tuple(rows))


def data(nodes: Sequence[NodeView], gone: Sequence[GoneNode] = ()) -> list[dict[str, Any]]:
    """Return the output of ``gputopo topo --cluster`` as JSON and YAML data.

    Later releases may add fields.

    Args:
        nodes: The nodes with an agent.
        gone: The nodes whose agent is gone; their machines are not known.
    """
    return [
        {
            "node": node.name,
            "free": node.free,
            "largest_nvlink_set": _largest_set_data(node),
            "gpus": [_gpu_data(view) for view in node.gpus],
            "machine": machine_view.data(node.machine, node.groups),
            **({"lost": [_lost_data(gpu) for gpu in node.lost]} if node.lost else {}),
        }
        for node in nodes
    ] + [
        {
            "node": node.name,
            "agent": "gone",
            "free": [],
            "largest_nvlink_set": None,
            "gpus": [
                {"device": device, "state": Hold.ALLOCATED.value, "used_by": list(map(_holder_data, holders))}
                for device, holders in node.gpus
            ],
            "machine": None,
        }
        for node in gone
    ]


def _lost_data(gpu: LostView) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "pci": gpu.pci,
        "uuid": gpu.uuid,
        "used_by": [_holder_data(holder) for holder in gpu.holders],
    }


def _largest_set_data(node: NodeView) -> dict[str, Any] | None:
    largest = node.nvlink_set
    if largest is None:
        return None
    vendor = node.machine.vendor
    busbw = {"busbw_gbps": largest.busbw_gbps} if vendor.predicted else {}
    bandwidth = {"bandwidth_gbps": largest.bandwidth_gbps} if vendor.rated else {}
    return {"gpus": list(largest.gpus), **busbw, **bandwidth}


def _gpu_data(view: GpuView) -> dict[str, Any]:
    return {
        "index": view.gpu.index,
        **({} if view.gpu.driver_index is msgspec.UNSET else {"driver_index": view.gpu.driver_index}),
        "uuid": view.gpu.uuid,
        "state": view.state,
        "blocked": view.blocked if view.taken_by else view.why_not_free,
        "used_by": [_holder_data(holder) for holder in view.holders],
    }


def _holder_data(holder: Holder) -> dict[str, Any]:
    return {
        "allocation": holder.hold.value,
        "namespace": holder.namespace,
        "claim": holder.claim,
        "pods": list(holder.pods),
        "share_id": holder.share,
        "fraction": holder.part,
    }
