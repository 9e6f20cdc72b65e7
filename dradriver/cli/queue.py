"""``gputopo queue``: the pods and gangs that wait for GPUs, in order, and why each waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from dradriver.api.base import names
from dradriver.api.claims.usage_config_maps import HOUR_S
from dradriver.cli.cluster import access, installation, workload_names
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    namespace_options,
    only_namespace,
    output_options,
    policies_option,
    server_options,
)
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import queue_position
from dradriver.cli.explainer.explain_document import FAIR_SHARE, MOVES, fair_share
from dradriver.cli.inputs import given_policies
from dradriver.queue.namespace_tenants import ALL
from dradriver.queue.queue_order import Standing, line
from dradriver.view.document import Cell, Column, Document, Notes, Table, report, words
from dradriver.view.output import show_as
from dradriver.view.terminal_text import plain

_WAITING: Final = "waiting"
_GATHERING: Final = "gathering"
_UNKNOWN: Final = "unknown"
_REFUSED: Final = "refused"
# The table's text instead of a position.
_NO_POSITION: Final = {_GATHERING: "gathering", _UNKNOWN: "size unknown", _REFUSED: "never"}
_NOTES: Final = {
    _GATHERING: "gathering: a gang gets its position when enough of its pods exist.",
    _UNKNOWN: "size unknown: it is not known how many pods the gang has. gputopo explain NAME says why.",
    _REFUSED: "never: the tenant's cap is smaller than the request. Request fewer GPUs, or ask for a higher cap.",
}


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """A pod or gang that waits. All text in it is safe to print.

    Attributes:
        state: ``waiting``, ``gathering``, ``unknown`` or ``refused``. A gang is ``gathering`` while too few of its pods
            exist, and ``unknown`` while its size is not known. A workload is ``refused`` if its request is larger than
            the tenant's cap, so that it is never placed.
        position: The position in the queue, from 1; None if it has none: only ``waiting`` workloads have one.
        name: Its name (``workload_names``), which ``gputopo explain`` takes.
        namespace: Its namespace.
        pods: Number of its pods that exist.
        needed_pods: Number of its pods that must exist before it gets a position; None if this is not known.
        gpus: Number of GPUs that they request; shares and slices count as fractions.
        tenant: Its tenant; empty if the policies file names no tenants.
        priority: Its priority in the queue: the lowest of its pods, limited by the tenant's highest priority.
        fair_share_use: The GPU time of its tenant relative to its weight, as in ``tenants`` and ``explain``.
        gpu_hours: Past GPU-hours of its tenant; the older they are, the less they count.
        since: Since when it waits.
        reason: Why it waits, from the annotation of its pod.
        reserved: Number of GPUs that are reserved for it.
    """

    state: str
    position: int | None
    name: str
    namespace: str
    pods: int
    needed_pods: int | None
    gpus: float
    tenant: str
    priority: int
    fair_share_use: float
    gpu_hours: float
    since: str
    reason: str
    reserved: int = 0


@click.command()
@namespace_options("Only this namespace. Default: all namespaces.")
@server_options
@policies_option
@driver_namespace_option
@output_options
def queue(
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    driver_namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the pods and gangs that wait for GPUs, in the order in which the controller serves them.

    The highest priority is first. Then comes the tenant with the least GPU time for its weight, then the oldest
    workload. A workload that finds no place does not hold up the next ones. Some workloads have no position and come
    last: gangs that still gather their pods, gangs of unknown size, and workloads that a tenant's cap never allows.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    only = only_namespace(namespace, all_namespaces=all_namespaces)
    scene, standing = asyncio.run(queue_position.read(server, given_policies(policies_file), driver_namespace))
    found = [one for one in waits(scene, standing) if only in (None, one.namespace)]
    installation.tell(scene.absence, output, no_color=no_color)
    show_as(output, document=lambda: document(found), data=lambda: msgspec.to_builtins(found), no_color=no_color)


def waits(scene: Scene, standing: Sequence[Standing]) -> list[Waits]:
    """Return the pods and gangs that wait as ``gputopo queue`` lists them: those with a position first.

    ``scene`` is the listed cluster, ``standing`` the workloads that need a place now, as the controller orders them.
    """
    gathering = queue_position.gathering(scene)
    without_position = line([workload for workload, _ in gathering.values()], scene.tenants)
    needed_pods_of = {key: needed_pods for key, (_, needed_pods) in gathering.items()}
    refused = {one.workload.key for one in standing if queue_position.is_refused(scene, one.workload)}
    in_order = [
        *((_WAITING, one) for one in standing if one.workload.key not in refused),
        *((_GATHERING, one) for one in without_position if needed_pods_of[one.workload.key] is not None),
        *((_UNKNOWN, one) for one in without_position if needed_pods_of[one.workload.key] is None),
        *((_REFUSED, one) for one in standing if one.workload.key in refused),
    ]
    workload_names_in_order = workload_names.names_of(scene, [one.workload for _, one in in_order])
    return [
        _waits(
            scene, one, name, state=state,
            position=position if state == _WAITING else None,
            needed_pods=needed_pods_of.get(one.workload.key, len(one.workload.members)),
        )
        for position, (name, (state, one)) in enumerate(zip(workload_names_in_order, in_order, strict=True), 1)
    ]  # fmt: skip


def _waits(
    scene: Scene, one: Standing, name: str, *, state: str, position: int | None, needed_pods: int | None
) -> Waits:
    workload, pod, held = one.workload, one.workload.lead.pod, scene.reserved(one.workload)
    has_tenant = one.tenant != ALL
    return Waits(
        state=state,
        position=position,
        name=name,
        namespace=plain(workload.key[0]),
        pods=len(workload.members),
        needed_pods=needed_pods,
        gpus=round(one.gpus, 2),
        tenant=plain(one.tenant) if has_tenant else "",
        priority=-workload.order[0],
        fair_share_use=round(scene.tenants.relative(one.tenant), 2) if has_tenant else 0.0,
        gpu_hours=round(scene.tenants.shares.used(one.tenant) / HOUR_S, 2) if has_tenant else 0.0,
        since=plain(pod.metadata.creation_timestamp or ""),
        reason=plain(pod.metadata.annotations.get(names.REASON, "")),
        reserved=0 if held is None else len(held.gpus),
    )


def document(found: list[Waits]) -> Document:
    """Return the output of ``gputopo queue``: the pods and gangs in the queue, in order."""
    if not found:
        return report(Notes(lines=(Cell("no pod waits for GPUs"),)))
    has_tenants = any(one.tenant for one in found)
    columns = (
        Column("position", number=True), Column("pod or gang"), Column("pods", number=True),
        Column("GPUs", number=True), Column("tenant", detail=not has_tenants), Column("priority", number=True),
        Column("tenant's GPU-hours", number=True, detail=not has_tenants),
        Column("fair-share use", number=True, detail=not has_tenants),
        Column("reserved GPUs", number=True), Column("waiting since"),
        Column("reason"),
    )  # fmt: skip
    rows = tuple(
        words(
            _NO_POSITION.get(one.state) or str(one.position), one.name, _pods(one), f"{one.gpus:g}", one.tenant,
            str(one.priority),
            f"{one.gpu_hours:g}" if one.tenant else "", fair_share(one.fair_share_use) if one.tenant else "",
            str(one.reserved or ""), one.since, one.reason,
        )
        for one in found
    )  # fmt: skip
    lines = [Cell(MOVES)]
    lines += [Cell(text) for state, text in _NOTES.items() if any(one.state == state for one in found)]
    if has_tenants:
        lines.append(Cell(FAIR_SHARE))
    return report(Table(columns=columns, rows=rows), Notes(lines=tuple(lines)))


def _pods(one: Waits) -> str:
    return f"{one.pods} of {one.needed_pods}" if one.state == _GATHERING else str(one.pods)
