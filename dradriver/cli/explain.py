"""``gputopo explain``: why a pod waits, or what it got and why nothing better."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from dradriver import __version__
from dradriver.api.objects import Pod
from dradriver.cli.cluster import access, reading
from dradriver.cli.cluster.options import namespace_option, output_options, server_options
from dradriver.cli.explainer import document
from dradriver.cli.explainer.subject import subject
from dradriver.cli.render.output import show, show_as, warn
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import PODS


@click.command()
@click.argument("pod")
@namespace_option
@server_options
@output_options
def explain(
    pod: str, namespace: str | None, kubeconfig: str | None, context: str | None, output: str, no_color: bool
) -> None:
    """Say why POD waits: what it asks for, what is free, who holds the rest, its turn; or what it got.

    The controller's own decision is made again from what the cluster says now; nothing is written.
    """
    name = pod.removeprefix("pod/").removeprefix("pods/")
    if not name or "/" in name or name in (".", ".."):
        raise click.UsageError(f"{pod!r} is no pod's name; give the name alone, and the namespace by -n")
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    asyncio.run(_explain(server, namespace or server.namespace, name, output=output, no_color=no_color))


async def _explain(server: ServerConfig, namespace: str, name: str, *, output: str, no_color: bool) -> None:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        pod = await _read(client, server, namespace, name)
        said = subject(pod)
        if output == "table":
            show(document.head(said), no_color=no_color)
            sys.stdout.flush()  # people read on while the cluster is being read
        from dradriver.cli.explainer.verdict import verdict  # here: it takes longer to load than the pod to read

        found = await verdict(client, server, pod)
    for trouble in found.unread:
        warn(trouble)
    if output == "table":
        more = document.rest(said, found)
        if more.sections:
            click.echo()
            show(more, no_color=no_color)
        return
    show_as(output, document=lambda: document.head(said), data=lambda: document.data(said, found))


async def _read(client: Client, server: ServerConfig, namespace: str, name: str) -> Pod:
    try:
        return await client.get(PODS, name, namespace=namespace, type=Pod)
    except ApiError as error:
        if error.not_found:
            raise reading.ClusterError(
                f"{server.url}: namespace {namespace} has no pod {name}; name another namespace with -n"
            ) from error
        raise reading.refused(error, server, PODS, namespace=namespace) from error
    except Unreachable as error:
        raise reading.refused(error, server, PODS, namespace=namespace) from error
