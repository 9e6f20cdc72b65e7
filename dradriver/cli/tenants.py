"""``gputopo tenants``: what each tenant may have, has, has had and waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

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
from dradriver.queue.queue_order import Standing
from dradriver.view.document import Cell, Column, Document, Notes, Table, report, words
from dradriver.view.output import show_as
from dradriver.view.terminal_text import plain

_NAMED: Final = 3  # namespaces in the table


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A cap, and what counts for it.

    Attributes:
        gpus: How many GPUs the tenant may have.
        products: Of these; empty for any.
        used: How many its claims hold or are promised.
    """

    gpus: float
    products: tuple[str, ...]
    used: float


class TenantNow(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as it is now. All text in it is safe to print.

    Attributes:
        tenant: Its name in the policies file, or ``namespace/NAME`` of a namespace that no tenant has.
        namespaces: Its namespaces, as far as they are known.
        weight: Its weight.
        caps: What bounds what it may have at a time.
        gpus: How many GPUs its claims hold or are promised, parts as fractions.
        share: What it has had beside what its weight says, 1 for just that.
        waiting_pods: How many of its pods wait for a place.
        waiting_gpus: How many GPUs these ask for, parts as fractions.
        highest_priority: The highest priority that counts; None for any.
    """

    tenant: str
    namespaces: tuple[str, ...]
    weight: float
    caps: tuple[Bound, ...]
    gpus: float
    share: float
    waiting_pods: int
    waiting_gpus: float
    highest_priority: int | None


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
    """Show what each tenant may have, has, has had beside its weight, and waits for.

    Tenants are those of the policies file. Of other namespaces those are shown that have GPUs, or wait for some.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    found = asyncio.run(_read(server, given_policies(policies_file), driver_namespace))
    show_as(output, document=lambda: document(found), data=lambda: msgspec.to_builtins(found), no_color=no_color)


async def _read(server: ServerConfig, policies: Policies | None, namespace: str | None) -> list[TenantNow]:
    return tenants_now(*await queue_position.read(server, policies, namespace))


def tenants_now(scene: Scene, standing: Sequence[Standing]) -> list[TenantNow]:
    """Return the tenants of the policies file as they are now, and other namespaces that have GPUs or wait.

    Nothing if the policies file names no tenants.
    """
    if not scene.tenants.named:
        return []
    held = {tenant for tenant in scene.tenants.shares.tenants() if scene.tenants.shares.held(tenant)[1]}
    others = sorted((held | {one.tenant for one in standing}) - scene.tenants.named.keys())
    return [_now(scene, tenant, standing) for tenant in (*scene.tenants.named, *others)]


def _now(scene: Scene, tenant: str, standing: Sequence[Standing]) -> TenantNow:
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
        share=round(known.relative(tenant), 2),
        waiting_pods=sum(len(one.workload.members) for one in own),
        waiting_gpus=round(sum(one.gpus for one in own), 2),
        highest_priority=None if named is None else named.highest_priority,
    )


def document(found: Sequence[TenantNow]) -> Document:
    """Return what ``gputopo tenants`` prints: a row for each tenant."""
    if not found:
        return report(Notes(lines=(Cell("the policies file names no tenants"),)))
    columns = (
        Column("tenant"), Column("namespaces"), Column("weight", number=True), Column("GPUs", number=True),
        Column("cap"), Column("share had", number=True), Column("waiting pods", number=True),
        Column("for GPUs", number=True), Column("highest priority", number=True),
    )  # fmt: skip
    rows = tuple(
        words(
            one.tenant, _some(one.namespaces), f"{one.weight:g}", f"{one.gpus:g}", "; ".join(map(_said, one.caps)),
            f"{one.share:g}", str(one.waiting_pods), f"{one.waiting_gpus:g}",
            "" if one.highest_priority is None else str(one.highest_priority),
        )
        for one in found
    )  # fmt: skip
    return report(Table(columns=columns, rows=rows))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _said(cap: Bound) -> str:
    return f"{cap.used:g} of {cap.gpus:g}" + (f" {', '.join(cap.products)}" if cap.products else "")
