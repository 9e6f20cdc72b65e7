"""Reads a cluster and prints it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import click

from dradriver.cli.cluster import access, reading, text
from dradriver.cli.cluster.views import views
from dradriver.topology.natural import natural


def show(*, kubeconfig: str | None, context: str | None, nodes: Sequence[str], output: str, colour: bool) -> None:
    """Print the cluster's nodes, or only those named, and on stderr a warning for each that cannot be shown.

    Raises:
        ConfigError: How to reach the cluster is not known.
        ClusterError: It cannot be read, or there is nothing to show.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    slices, claims = asyncio.run(reading.read(server))
    shown, warnings = views(slices, claims, only=nodes)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if not shown:
        known = ", ".join(sorted({piece.spec.pool.name for piece in slices}, key=natural))
        raise reading.ClusterError(f"{server.url}: nothing to show; nodes with slices of this driver: {known}")
    if output == "table":
        click.echo(text.table(shown, colour=colour), color=colour)
    elif output in ("svg", "html"):
        from dradriver.cli.cluster import drawing

        click.echo(drawing.svg(shown) if output == "svg" else drawing.html(shown), nl=False)
    elif output == "json":
        click.echo(json.dumps(text.document(shown), ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(text.document(shown), sort_keys=False, allow_unicode=True), nl=False)
