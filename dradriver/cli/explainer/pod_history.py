"""The history of a pod and its claim, from their own timestamps and from Events."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Claim
from dradriver.cli.cluster import cluster_reading
from dradriver.cli.explainer.model import Happening
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import EVENTS
from dradriver.view.terminal_text import plain

MOST: Final = 20  # of what is shown; the newest


class _Source(msgspec.Struct, frozen=True):
    component: str = ""


class _Series(msgspec.Struct, rename="camel", frozen=True):
    count: int = 0
    last_observed_time: str | None = None


class _Event(msgspec.Struct, rename="camel", frozen=True):
    metadata: Metadata
    reason: str = ""
    message: str = ""
    count: int | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: _Series | None = None
    source: _Source | None = None
    reporting_component: str = ""


async def events(client: Client, server: ServerConfig, namespace: str, uid: str, about: str) -> list[Happening]:
    """Return the Events about a pod or its claim, for the pod's history.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The API server, for messages.
        namespace: The namespace of the object.
        uid: The uid of the object.
        about: What the Events are about: ``pod``, or ``claim`` with its name.

    Raises:
        ClusterError: They cannot be read.
    """
    selector = f"involvedObject.uid={uid}"
    listed = await cluster_reading.listed(client, server, EVENTS, _Event, namespace=namespace, field_selector=selector)
    return [_happening(event, about) for event in listed]


def _happening(event: _Event, about: str) -> Happening:
    series = event.series
    last = series.last_observed_time if series is not None else None
    time = last or event.last_timestamp or event.event_time or event.metadata.creation_timestamp or ""
    count = series.count if series is not None else event.count
    source = event.reporting_component or (event.source.component if event.source is not None else "")
    return Happening(
        time=plain(time), about=about, reason=plain(event.reason), message=plain(event.message), count=count or 1,
        source=plain(source),
    )  # fmt: skip


def own(pod: Pod, claim: Claim | None) -> list[Happening]:
    """Return the creation and deletion of a pod and its claim, from their own timestamps."""
    happenings: list[Happening] = []

    def add(metadata: Metadata, about: str, promised: str = "") -> None:
        if metadata.creation_timestamp:
            happenings.append(_said(metadata.creation_timestamp, about, "Created", promised))
        if metadata.deletion_timestamp:
            happenings.append(_said(metadata.deletion_timestamp, about, "Deleted", "the end of its grace period"))

    add(pod.metadata, "pod")
    if claim is not None:
        promise = claim.metadata.labels.get(names.LABEL) == names.LABEL_PLACED
        add(claim.metadata, "claim", "begin of the tentative placement" if promise else "")
    return happenings


def _said(time: str, about: str, reason: str, message: str) -> Happening:
    return Happening(time=plain(time), about=about, reason=reason, message=message)


def in_order(happenings: list[Happening]) -> tuple[Happening, ...]:
    """Return the newest ``MOST`` happenings in the history of a pod, oldest first."""
    return tuple(sorted(happenings, key=_when)[-MOST:])


def _when(happening: Happening) -> Any:
    # To the second: some sources write fractions, some do not.
    return happening.time[:19], happening.about, happening.reason
