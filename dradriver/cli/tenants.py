"""``gputopo tenants``: weight, cap, GPUs, past use and waiting pods of each tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from dradriver.api.policies.unmatched_selectors import unmatched
from dradriver.cli.cluster import access, installation
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    output_options,
    policies_option,
    server_options,
)
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import queue_position
from dradriver.cli.explainer.explain_document import FAIR_SHARE, fair_share
from dradriver.cli.inputs import given_policies
from dradriver.counted import first_of
from dradriver.queue.queue_order import Standing
from dradriver.view.document import Cell, Column, Document, Notes, Table, Tone, report, words
from dradriver.view.output import show_as
from dradriver.view.terminal_text import plain

_NAMED: Final = 3  # namespaces in the table


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A cap, and the GPUs that count towards it.

    Attributes:
        gpus: The most GPUs that the tenant may have.
        products: The products that the cap is about; empty for all.
        used: Number of these GPUs that the tenant's claims have, allocated or tentatively placed.
    """

    gpus: float
    products: tuple[str, ...]
    used: float


class TenantNow(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as it is now. All text in it is safe to print.

    Attributes:
        tenant: Its name in the policies file, or ``namespace/NAME`` for a namespace without a tenant.
        namespaces: Its known namespaces.
        weight: Its weight.
        caps: Its caps on GPUs in use.
        gpus: Number of GPUs that its claims have, allocated or tentatively placed; shares and slices count as
            fractions.
        fair_share_use: Its GPU time relative to its weight; 1 for exactly its share (``FAIR_SHARE``).
        waiting_pods: Number of its pods that wait for a place.
        waiting_gpus: Number of GPUs that these pods request; shares and slices count as fractions.
        highest_priority: The highest priority that its pods can have in the queue; None for no limit.
        unmatched: Messages about its caps, and its partition (the GPUs that the policies file limits it to), if they
            select no GPU of the cluster.
    """

    tenant: str
    namespaces: tuple[str, ...]
    weight: float
    caps: tuple[Bound, ...]
    gpus: float
    fair_share_use: float
    waiting_pods: int
    waiting_gpus: float
    highest_priority: int | None
    unmatched: tuple[str, ...] = ()


@click.command()
@server_options
@policies_option
@driver_namespace_option
@output_options
def tenants(
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    driver_namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the weight, cap, GPUs, fair-share use and waiting pods of each tenant.

    The policies file names the tenants. Other namespaces are shown if they have GPUs, or wait for GPUs.

    Fair-share use is the GPU time of the tenant relative to its weight; 1x is exactly its share. GPU time halves with
    each half-life. The GPU time of a deleted namespace still counts, so creating a namespace again does not improve its
    position.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    scene, standing = asyncio.run(queue_position.read(server, given_policies(policies_file), driver_namespace))
    found = tenants_now(scene, standing)
    installation.tell(scene.absence, output, no_color=no_color)
    show_as(
        output,
        document=lambda: document(found, scene),
        data=lambda: msgspec.to_builtins(found),
        no_color=no_color,
    )


def tenants_now(scene: Scene, standing: Sequence[Standing]) -> list[TenantNow]:
    """Return the tenants of the policies file, and other namespaces that have GPUs or wait.

    The result is empty if the policies file names no tenants. ``scene`` is the listed cluster, ``standing`` the queue
    in order.
    """
    if not scene.tenants.named:
        return []
    held = {tenant for tenant in scene.tenants.shares.tenants() if scene.tenants.shares.held(tenant)[1]}
    others = sorted((held | {one.tenant for one in standing}) - scene.tenants.named.keys())
    messages = unmatched(scene.tenants.named, scene.gpus_by_node()) if scene.whole else {}
    return [_now(scene, tenant, standing, messages.get(tenant, ())) for tenant in (*scene.tenants.named, *others)]


def _now(scene: Scene, tenant: str, standing: Sequence[Standing], messages: Sequence[str]) -> TenantNow:
    known, own = scene.tenants, [one for one in standing if one.tenant == tenant]
    named = known.named.get(tenant)
    spaces = (tenant.partition("/")[2],) if named is None else tuple(known.namespaces(tenant))
    return TenantNow(
        tenant=plain(tenant),
        namespaces=tuple(map(plain, spaces)),
        weight=known.weight(tenant),
        caps=tuple(
            Bound(gpus=cap.gpus, products=cap.products, used=round(scene.caps.used_of(tenant, cap), 2))
            for cap in known.caps(tenant)
        ),
        gpus=round(known.shares.held(tenant)[1], 2),
        fair_share_use=round(known.relative(tenant), 2),
        waiting_pods=sum(len(one.workload.members) for one in own),
        waiting_gpus=round(sum(one.gpus for one in own), 2),
        highest_priority=None if named is None else named.highest_priority,
        unmatched=tuple(map(plain, messages)),
    )


def no_tenants(scene: Scene) -> str:
    """Return why no tenants of the listed cluster can be shown: the policies name none, or cannot be read."""
    if scene.policies.known:
        return "the policies file names no tenants"
    return "the tenants are not known, because the policies in force cannot be read"


def document(found: Sequence[TenantNow], scene: Scene) -> Document:
    """Return the output of ``gputopo tenants``: a row for each tenant of the listed cluster ``scene``."""
    if not found:
        return report(Notes(lines=(Cell(no_tenants(scene)),)))
    columns = (
        Column("tenant"), Column("namespaces"), Column("weight", number=True), Column("GPUs in use", number=True),
        Column("cap"), Column("fair-share use", number=True), Column("waiting pods", number=True),
        Column("requested GPUs", number=True), Column("highest priority", number=True),
    )  # fmt: skip
    rows = tuple(
        words(
            one.tenant, _some(one.namespaces), f"{one.weight:g}", f"{one.gpus:g}", "; ".join(map(_said, one.caps)),
            fair_share(one.fair_share_use), str(one.waiting_pods), f"{one.waiting_gpus:g}",
            "" if one.highest_priority is None else str(one.highest_priority),
        )
        for one in found
    )  # fmt: skip
    warnings = (Cell(f"warning: {message}", Tone.WARNING) for one in found for message in one.unmatched)
    return report(Table(columns=columns, rows=rows), Notes(lines=(*warnings, Cell(FAIR_SHARE))))


def _some(names: Sequence[str]) -> str:
    return first_of(names, _NAMED)


def _said(cap: Bound) -> str:
    return f"{cap.used:g} of {cap.gpus:g}" + (f" {', '.join(cap.products)}" if cap.products else "")
