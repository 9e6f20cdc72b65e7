"""``gputopo uninstall``: which pods need the driver, before and after an uninstallation.

The chart's hook runs it before ``helm uninstall`` deletes anything, and people run it afterwards.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from dradriver import __version__
from dradriver.cli.cluster import access, cluster_reading, driver_dependents
from dradriver.cli.cluster.cluster_options import namespace_options, only_namespace, output_options, server_options
from dradriver.cli.cluster.driver_dependents import CURES, Dependent, Pod, State
from dradriver.counted import counted
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.view.document import Cell, Column, Document, Notes, Table, report, words
from dradriver.view.output import show_as

_RELEASE: Final = re.compile(r"([a-z0-9.-]{1,253})/([a-z0-9.-]{1,53})")


class Release(NamedTuple):
    """The chart's Helm release, which ``helm uninstall`` is about to delete."""

    namespace: str
    name: str


def _read_release(_: click.Context, __: click.Parameter, text: str | None) -> Release | None:
    if text is None:
        return None
    if (match := _RELEASE.fullmatch(text)) is None:
        raise click.BadParameter("write NAMESPACE/NAME, for example gpu-topology/gpu-topology")
    return Release(*match.groups())


@click.command()
@namespace_options("Only this namespace. Default: all namespaces.")
@click.option(
    "--release", metavar="NAMESPACE/NAME", callback=_read_release,
    help="For the hook of the chart: also print how to keep or uninstall this Helm release.",
)  # fmt: skip
@server_options
@output_options
def uninstall(
    namespace: str | None,
    all_namespaces: bool,
    release: Release | None,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the pods that need the driver, before or after an uninstallation. The command deletes nothing.

    "helm uninstall" runs this command first, and stops if it lists a pod. After a forced uninstallation, the command
    lists the remaining pods.

    Exit status: 0 no pod needs the driver, 1 pods need it, or the cluster cannot be read, 2 wrong usage.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    only = only_namespace(namespace, all_namespaces=all_namespaces)
    found = [dependent for dependent in asyncio.run(_read(server)) if only in (None, dependent.namespace)]
    show_as(
        output, document=lambda: document(found, release), data=lambda: msgspec.to_builtins(found), no_color=no_color
    )
    if found:
        raise click.exceptions.Exit(1)


async def _read(server: ServerConfig) -> list[Dependent]:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        pods = await cluster_reading.listed(client, server, PODS, Pod)
        claims = await cluster_reading.listed(client, server, RESOURCE_CLAIMS, cluster_reading.read_claim)
    return driver_dependents.dependents(pods, claims)


def document(found: list[Dependent], release: Release | None = None) -> Document:
    """Return the output of ``gputopo uninstall``: the pods that need the driver, and what to do with them.

    ``release`` is the Helm release whose uninstallation these pods stop; None if the user only asks.
    """
    if not found:
        return report(Notes(lines=(Cell("No pod needs the driver."),)))
    columns = (Column("namespace"), Column("pod"), Column("state"), Column("node"), Column("owner"))
    rows = tuple(
        words(
            dependent.namespace, dependent.pod, dependent.state.value, dependent.node, dependent.owner or "none"
        )
        for dependent in found
    )  # fmt: skip
    head = f"{counted(len(found), 'pod needs', 'pods need')} the driver."
    if release is not None:
        head += " So helm uninstall stops. It has deleted nothing, and the driver runs on."
    states = [state for state in State if any(dependent.state is state for dependent in found)]
    return report(
        Notes(lines=(Cell(head),)),
        Table(columns=columns, rows=rows),
        Notes(lines=tuple(map(Cell, map(_cure, states)))),
        Notes(lines=() if release is None else tuple(map(Cell, _ways(release)))),
    )


def _cure(state: State) -> str:
    cure = CURES[state]
    after = cure.after.format(pod="NAME -n NAMESPACE")
    return f"{state.value}: before the uninstallation: {cure.before} After it: {after}"


def _ways(release: Release) -> Iterator[str]:
    """Yield what the user can do after ``helm uninstall`` was stopped, each with its command.

    Helm writes the status ``uninstalling`` into the release before it runs the hook. ``helm upgrade`` needs a release
    with the status ``deployed``, and ``helm rollback`` makes one (Helm 4.2.4, pkg/action). The hook does not know the
    revision: after a rollback Helm runs the hook of the older revision, whose number may have left the history.
    """
    helm = f"{release.name} --namespace {release.namespace}"
    yield "List these pods again: gputopo uninstall"
    yield f"When these pods are gone, repeat the uninstallation: helm uninstall {helm}"
    yield (
        f"Keep the driver: helm rollback {release.name} REVISION --namespace {release.namespace}. REVISION is the "
        f"number that helm history {helm} prints next to the status uninstalling. Until then helm "
        "upgrade refuses the release."
    )
    yield (
        f"Uninstall although pods need the driver: helm uninstall {helm} --no-hooks. For later uninstallations, the "
        "value uninstall.force=true leaves this check out."
    )
