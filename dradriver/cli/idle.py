"""``gputopo idle``: pods that have GPUs and do not use them, most idle GPU-hours first."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import click
import msgspec

from dradriver import __version__
from dradriver.api.claims import idleness
from dradriver.api.claims.pins import Claim
from dradriver.api.policies.policy_sections import DEFAULTS
from dradriver.cli.cluster import access
from dradriver.cli.cluster.cluster_options import (
    namespace_options,
    only_namespace,
    output_options,
    server_options,
)
from dradriver.cli.cluster.listed_cluster import Scene, read_whole
from dradriver.cli.cluster.policies_in_force import InForce
from dradriver.cluster.gpus.gpu_parts import gpus_of
from dradriver.controller.features.idle_workloads import timeout_s
from dradriver.counted import counted, first_of
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.view.document import Cell, Column, Document, Notes, Table, report, words
from dradriver.view.output import show_as, warn
from dradriver.view.terminal_text import plain

HOUR_S: Final = 3600.0
_DAY_H: Final = 24
_MOST_PODS: Final = 8  # that are named of a claim


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose GPUs are idle. All text in it is safe to print.

    Attributes:
        namespace: Its namespace.
        pods: The pods that use it.
        claim: Its name.
        node: Its node.
        gpus: Number of its GPUs; shares and slices count as fractions.
        products: The products of the GPUs.
        since: Since when the GPUs are idle.
        hours: Hours from then until now.
        gpu_hours: ``hours`` times ``gpus``.
        timeout_s: Idle seconds after which the pod is to be ended; None if the pod does not set it.
        ends: When the controller will end the pod, if it has announced this; else empty.
    """

    namespace: str
    pods: tuple[str, ...]
    claim: str
    node: str
    gpus: float
    products: tuple[str, ...]
    since: str
    hours: float
    gpu_hours: float
    timeout_s: int | None
    ends: str


@click.command()
@namespace_options("Only this namespace. Default: all namespaces.")
@server_options
@output_options
def idle(
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the pods whose GPUs have been idle for at least five minutes, most idle GPU hours first.

    A GPU is idle while the node agent reports a utilization of 0. Two kinds of fractions are not listed, because the
    agent cannot see their utilization: MIG slices with a process, and MPS shares while other pods work on the GPU.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    only = only_namespace(namespace, all_namespaces=all_namespaces)
    idle = [entry for entry in asyncio.run(_read(server)) if only in (None, entry.namespace)]
    show_as(output, document=lambda: document(idle), data=lambda: msgspec.to_builtins(idle), no_color=no_color)


async def _read(server: ServerConfig) -> list[Idle]:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        scene = await read_whole(client, server, InForce(DEFAULTS))
    for trouble in scene.unread:
        warn(trouble)
    return idle_claims(scene, now=time.time())


def idle_claims(scene: Scene, *, now: float) -> list[Idle]:
    """Return the claims of the listed cluster with idle devices, most idle GPU-hours first.

    ``now`` is in seconds since the epoch.
    """
    idle = []
    for claim in scene.claims.values():
        idle_since = idleness.idle_of(claim)
        if idle_since is not None:
            idle.append(_idle_claim(scene, claim, idle_since.since, now))
    return sorted(idle, key=lambda entry: (-entry.gpu_hours, entry.namespace, entry.claim))


def _idle_claim(scene: Scene, claim: Claim, since: float, now: float) -> Idle:
    picture, hours = scene.picture, max(now - since, 0.0) / HOUR_S
    # Product, kind and number of GPUs (0.25 for a quarter) of each device of the claim.
    fractions = [
        part
        for (pool, device), usage in picture.held(claim.key).items()
        for part in gpus_of(picture.inventory.pool(pool), device, usage)
    ]
    gpus = sum(part for _, _, part in fractions)
    pod_names = (user.name for user in claim.status.reserved_for if user.resource in ("pods", ""))
    timeouts = [timeout_s(picture.pods[pod]) for pod in picture.claim_users.of(claim.key)]
    end = idleness.asked(claim.metadata.annotations)
    return Idle(
        namespace=plain(claim.metadata.namespace),
        pods=tuple(sorted(map(plain, pod_names))),
        claim=plain(claim.metadata.name),
        node=plain(next((pool for pool, _ in picture.held(claim.key)), "")),
        gpus=round(gpus, 2),
        products=tuple(sorted({plain(product) for product, _, _ in fractions if product})),
        since=idleness.moment(since),
        hours=round(hours, 2),
        gpu_hours=round(hours * gpus, 2),
        timeout_s=timeouts[0] if len(timeouts) == 1 else None,
        ends="" if end is None else idleness.moment(end),
    )


def document(idle: list[Idle]) -> Document:
    """Return the output of ``gputopo idle``: the claims whose GPUs are idle."""
    if not idle:
        return report(Notes(lines=(Cell("no pod's GPUs are known to be idle"),)))
    total = sum(entry.gpu_hours for entry in idle)
    are_idle = counted(sum(entry.gpus for entry in idle), "GPU is idle", "GPUs are idle")
    title = f"{are_idle}, {total:.1f} GPU-hours so far"
    columns = (
        Column("namespace"), Column("pod"), Column("GPUs", number=True), Column("product"), Column("idle since"),
        Column("idle for", number=True), Column("GPU-hours", number=True), Column("idle-timeout"), Column("ends at"),
        Column("node", detail=True),
    )  # fmt: skip
    rows = tuple(
        words(
            entry.namespace, _pods(entry), f"{entry.gpus:g}", ", ".join(entry.products), entry.since,
            _duration_text(entry.hours * HOUR_S),
            f"{entry.gpu_hours:.1f}", "" if entry.timeout_s is None else _duration_text(entry.timeout_s), entry.ends,
            entry.node,
        )
        for entry in idle
    )  # fmt: skip
    return report(Notes(lines=(Cell(title),)), Table(columns=columns, rows=rows))


def _pods(claim: Idle) -> str:
    return first_of(claim.pods, _MOST_PODS) or f"none (claim {claim.claim})"


def _duration_text(seconds: float) -> str:
    """Return a duration as people write it: ``1h30m``; above a day ``2d3h``."""
    minutes = int(seconds // 60)
    hours, minutes = divmod(minutes, 60)
    days, left_hours = divmod(hours, _DAY_H)
    if days:
        return f"{days}d{left_hours}h"
    return f"{hours}h{minutes}m" if hours else f"{minutes}m"
