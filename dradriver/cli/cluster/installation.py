"""Whether the driver is installed, for every command whose answer needs the controller or the node agents.

After an uninstallation no program chooses, prepares or releases GPUs. Commands then say so first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from dradriver.cli.cluster import cluster_reading, policies_in_force
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.verifier.driver_pods import SELECTOR
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import DAEMON_SETS
from dradriver.view.document import Cell, Notes, Tone, report
from dradriver.view.output import show, warn
from dradriver.view.terminal_text import plain

_ABSENT: Final = (
    "No driver is installed: namespace {} has no DaemonSet of node agents. No controller chooses GPUs for pods, and no "
    "node agent prepares or releases GPUs."
)
_INSTALL: Final = "Install the chart."
_INSTALL_OR_NAME: Final = "Install the chart, or name the driver's namespace with --driver-namespace."


class Installation(NamedTuple):
    """The driver's installation in a cluster.

    Attributes:
        namespace: The namespace where it is, or would be.
        exists: Whether the namespace has a DaemonSet of node agents; None if that is not known.
        problem: Sentences that no driver is installed; empty if it is installed, or if that is not known. Safe to
            print.
        cure: The sentence that says what to do then; empty if ``problem`` is empty.
        daemon_sets: The DaemonSets of node agents.
        unread: Why the DaemonSets could not be read; empty if they were read.
    """

    namespace: str
    exists: bool | None = None
    problem: str = ""
    cure: str = ""
    daemon_sets: tuple[Mapping[str, Any], ...] = ()
    unread: str = ""

    @property
    def absence(self) -> str:
        """Return ``problem`` and ``cure`` as one text; empty if a driver is installed, or if that is not known."""
        return f"{self.problem} {self.cure}".strip()


async def read(client: Client, server: ServerConfig, name: str | None) -> Installation:
    """Return the driver's installation. No error is raised: what could not be read is not known.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The server, for messages.
        name: The driver's namespace, if the user names it; else it is looked for.
    """
    namespace, is_certain = await policies_in_force.locate(client, name)
    try:
        daemon_sets: list[Mapping[str, Any]] = await cluster_reading.listed(
            client, server, DAEMON_SETS, dict, namespace=namespace, label_selector=SELECTOR
        )
    except ClusterError as error:
        return Installation(namespace, unread=str(error))
    if daemon_sets:
        return Installation(namespace, exists=True, daemon_sets=tuple(daemon_sets))
    if not is_certain:  # another namespace can have the driver
        return Installation(namespace)
    cure = _INSTALL_OR_NAME if name else _INSTALL
    return Installation(namespace, exists=False, problem=plain(_ABSENT.format(namespace)), cure=cure)


def notes(absence: str) -> tuple[Notes, ...]:
    """Return the block of a document that no driver is installed; empty if ``absence`` is empty."""
    return (Notes(lines=(Cell(absence, Tone.ERROR),)),) if absence else ()


def tell(absence: str, output: str, *, no_color: bool = False) -> None:
    """Print before a command's output that no driver is installed; print nothing if ``absence`` is empty.

    The sentences come before a table. For other formats, which programs read, they are a warning on standard error.
    ``output`` is the format.
    """
    if absence and output == "table":
        show(report(*notes(absence)), no_color=no_color)
        click.echo()
    elif absence:
        warn(absence)
