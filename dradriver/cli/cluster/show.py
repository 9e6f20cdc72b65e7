"""Reads a cluster and prints it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from dradriver.cli.cluster import access, document, reading
from dradriver.cli.cluster.views import views
from dradriver.topology.natural import natural
from dradriver.view.output import show_as, warn


def show_cluster(
    *,
    kubeconfig: str | None,
    context: str | None,
    nodes: Sequence[str],
    namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the cluster's nodes, or only those named, and on stderr a warning for each that cannot be shown.

    With a namespace only those of whose GPUs its claims hold some, or are promised some.

    Raises:
        ConfigError: How to reach the cluster is not known.
        ClusterError: It cannot be read, or there is nothing to show.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    slices, claims = asyncio.run(reading.read(server))
    shown, warnings = views(slices, claims, only=nodes)
    for warning in warnings:
        warn(warning)
    if not shown:
        known = ", ".join(sorted({piece.spec.pool.name for piece in slices}, key=natural))
        raise reading.ClusterError(f"{server.url}: nothing to show; nodes with slices of this driver: {known}")
    if namespace is not None:
        shown = [node for node in shown if any(h.namespace == namespace for gpu in node.gpus for h in gpu.holders)]
        if not shown:
            raise reading.ClusterError(f"{server.url}: no claim of namespace {namespace} holds a GPU")
    show_as(output, document=lambda: document.document(shown), data=lambda: document.data(shown), no_color=no_color)
