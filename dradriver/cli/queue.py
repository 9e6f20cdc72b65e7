"""``gputopo queue``: who waits for GPUs, in which order, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from dradriver.api.base import names
from dradriver.api.claims.usage_config_maps import HOUR_S
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import access, workload_names
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
from dradriver.cli.inputs import given_policies
from dradriver.kube.config import ServerConfig
from dradriver.queue.namespace_tenants import ALL
from dradriver.queue.queue_order import Standing
from dradriver.view.document import Cell, Column, Document, Notes, Table, report, words
from dradriver.view.output import show_as
from dradriver.view.terminal_text import plain


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """One that waits. All text in it is safe to print.

    Attributes:
        position: From 1.
        name: Its name (``workload_names``), which ``gputopo explain`` takes.
        namespace: Its namespace.
        pods: How many pods.
        gpus: How many GPUs they ask for, parts as fractions.
        tenant: Whose it is; empty where the policies file names no tenants.
        priority: The priority that counts.
        share: What its tenant has had beside what its weight says, 1 for just that; as in ``tenants`` and ``explain``.
        gpu_hours: GPU-hours that its tenant has had; the older they are, the less they count.
        since: Since when it waits.
        reason: Why, as its pod says.
        reserved: How many GPUs are reserved for it.
    """

    position: int
    name: str
    namespace: str
    pods: int
    gpus: float
    tenant: str
    priority: int
    share: float
    gpu_hours: float
    since: str
    reason: str
    reserved: int = 0


@click.command()
@namespace_options("Only this namespace; else all.")
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
    """List the pods and gangs that wait for GPUs in the order in which they are served if all find a place.

    The highest priority is first; then whoever has had least GPU time for its weight; then the oldest. Who finds no
    place is passed by.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    only = only_namespace(namespace, all_namespaces=all_namespaces)
    listed = asyncio.run(_read(server, given_policies(policies_file), driver_namespace))
    found = [one for one in listed if only in (None, one.namespace)]
    show_as(output, document=lambda: document(found), data=lambda: msgspec.to_builtins(found), no_color=no_color)


async def _read(server: ServerConfig, policies: Policies | None, namespace: str | None) -> list[Waits]:
    return waits(*await queue_position.read(server, policies, namespace))


def waits(scene: Scene, standing: Sequence[Standing]) -> list[Waits]:
    """Return the pods and gangs in the queue as ``gputopo queue`` lists them, in order."""
    names_in_order = workload_names.names_of(scene, [one.workload for one in standing])
    return [
        _waits(scene, position, name, one)
        for position, (name, one) in enumerate(zip(names_in_order, standing, strict=True), 1)
    ]


def _waits(scene: Scene, position: int, name: str, one: Standing) -> Waits:
    workload, pod, held = one.workload, one.workload.lead.pod, scene.reserved(one.workload)
    has_tenant = one.tenant != ALL
    return Waits(
        position=position,
        name=name,
        namespace=plain(workload.key[0]),
        pods=len(workload.members),
        gpus=round(one.gpus, 2),
        tenant=plain(one.tenant) if has_tenant else "",
        priority=-workload.order[0],
        share=round(scene.tenants.relative(one.tenant), 2) if has_tenant else 0.0,
        gpu_hours=round(scene.tenants.shares.used(one.tenant) / HOUR_S, 2) if has_tenant else 0.0,
        since=plain(pod.metadata.creation_timestamp or ""),
        reason=plain(pod.metadata.annotations.get(names.REASON, "")),
        reserved=0 if held is None else len(held.gpus),
    )


def document(found: list[Waits]) -> Document:
    """Return what ``gputopo queue`` prints: the pods and gangs that wait, in order."""
    if not found:
        return report(Notes(lines=(Cell("nobody waits for GPUs"),)))
    has_tenants = any(one.tenant for one in found)
    columns = (
        Column("", number=True), Column("pod or gang"), Column("pods", number=True), Column("GPUs", number=True),
        Column("tenant", detail=not has_tenants), Column("priority", number=True),
        Column("tenant's GPU-hours", number=True, detail=not has_tenants),
        Column("share had", number=True, detail=not has_tenants),
        Column("reserved", number=True), Column("since"),
        Column("waits because"),
    )  # fmt: skip
    rows = tuple(
        words(
            str(one.position), one.name, str(one.pods), f"{one.gpus:g}", one.tenant, str(one.priority),
            f"{one.gpu_hours:g}" if one.tenant else "", f"{one.share:g}" if one.tenant else "",
            str(one.reserved or ""), one.since, one.reason,
        )
        for one in found
    )  # fmt: skip
    return report(Table(columns=columns, rows=rows))
