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
from dradriver.cli.cluster import access
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
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
from dradriver.queue.reservation_rules import Reservation
from dradriver.view.document import Cell, Column, Document, Notes, Table, report, words
from dradriver.view.output import show_as
from dradriver.view.terminal_text import plain


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """One that waits. All text in it is safe to print.

    Attributes:
        position: From 1.
        name: Its namespace and its pod's or gang's name.
        pods: How many pods.
        gpus: How many GPUs they ask for, parts as fractions.
        tenant: Whose it is; empty where the policies file names no tenants.
        priority: The priority that counts.
        share: GPU-hours that its tenant has had for its weight when its turn comes, decayed.
        since: Since when it waits.
        reason: Why, as its pod says.
        reserved: How many GPUs are reserved for it.
    """

    position: int
    name: str
    pods: int
    gpus: float
    tenant: str
    priority: int
    share: float
    since: str
    reason: str
    reserved: int = 0


@click.command()
@server_options
@policies_option
@driver_namespace_option
@output_options
def queue(
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
    found = asyncio.run(_read(server, given_policies(policies_file), driver_namespace))
    show_as(output, document=lambda: document(found), data=lambda: msgspec.to_builtins(found), no_color=no_color)


async def _read(server: ServerConfig, policies: Policies | None, namespace: str | None) -> list[Waits]:
    return waits(*await queue_position.read(server, policies, namespace))


def waits(scene: Scene, standing: Sequence[Standing]) -> list[Waits]:
    """Return the pods and gangs in the queue as ``gputopo queue`` lists them, in order."""
    return [_waits(position, one, scene.reserved(one.workload)) for position, one in enumerate(standing, 1)]


def _waits(position: int, one: Standing, held: Reservation | None) -> Waits:
    workload, pod = one.workload, one.workload.lead.pod
    return Waits(
        position=position,
        name=plain("/".join(workload.key)),
        pods=len(workload.members),
        gpus=round(one.gpus, 2),
        tenant="" if one.tenant == ALL else plain(one.tenant),
        priority=-workload.order[0],
        share=round(one.share / HOUR_S, 2),
        since=plain(pod.metadata.creation_timestamp or ""),
        reason=plain(pod.metadata.annotations.get(names.REASON, "")),
        reserved=0 if held is None else len(held.gpus),
    )


def document(found: list[Waits]) -> Document:
    """Return what ``gputopo queue`` prints: the pods and gangs that wait, in order."""
    if not found:
        return report(Notes(lines=(Cell("nobody waits for GPUs"),)))
    columns = (
        Column("", number=True), Column("pod or gang"), Column("pods", number=True), Column("GPUs", number=True),
        Column("tenant"), Column("priority", number=True), Column("had, GPU-h", number=True),
        Column("reserved", number=True), Column("since"),
        Column("waits because"),
    )  # fmt: skip
    rows = tuple(
        words(
            str(one.position), one.name, str(one.pods), f"{one.gpus:g}", one.tenant, str(one.priority),
            f"{one.share:g}" if one.tenant else "", str(one.reserved or ""), one.since, one.reason,
        )
        for one in found
    )  # fmt: skip
    return report(Table(columns=columns, rows=rows))
