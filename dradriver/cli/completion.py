"""``kubectl_complete-gputopo``: completion of ``kubectl gputopo`` in shells, and of names from the cluster.

kubectl runs this program with the words after ``kubectl gputopo``; the last word is the one to complete. kubectl
expects a line for each completion, with a help text after a tab. The last line is a colon and a number: 4 turns off
completion by file names, 0 allows it (ShellCompDirective of cobra). click itself completes ``gputopo`` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from dradriver.errors import DriverError
from dradriver.view.terminal_text import plain

_NO_FILES, _FILES = 4, 0
MOST: Final = 200  # names from a cluster
TIMEOUT_S: Final = 2.0  # somebody waits with a finger on the key


def main() -> None:
    """Print the shell completions of the words on the command line of ``kubectl gputopo``."""
    from dradriver.cli.main import main as gputopo

    print("\n".join(lines(gputopo, sys.argv[1:])))


def lines(command: click.Command, words: Sequence[str]) -> list[str]:
    """Return the output lines that complete the last of a command's words."""
    *before, incomplete = words or [""]
    shell = ShellComplete(command, {}, "kubectl gputopo", "_GPUTOPO_COMPLETE")
    try:
        items = shell.get_completions(list(before), incomplete)
    except (DriverError, OSError):
        items = []
    shown = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in items if item.type == "plain"]
    return [*(plain(line, keep="\t") for line in shown), f":{_FILES if len(shown) < len(items) else _NO_FILES}"]


def pods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Return the names of our pods that complete the word ``incomplete``.

    The result is empty if the cluster does not answer. If the word begins with a namespace and a slash, the pods of
    that namespace are returned.
    """
    import asyncio

    namespace, slash, start = incomplete.rpartition("/")
    try:
        known = asyncio.run(_pods(ctx.params, namespace))
    except (DriverError, OSError, TimeoutError):
        return []
    return [CompletionItem(f"{namespace}{slash}{name}") for name in sorted(known) if name.startswith(start)][:MOST]


async def _pods(params: dict[str, Any], namespace: str) -> list[str]:
    import asyncio

    from dradriver.api.base import names
    from dradriver.api.base.pods import Pod
    from dradriver.cli.cluster import access
    from dradriver.kube.client import Client
    from dradriver.kube.resources import PODS

    kubeconfig = params.get("kubeconfig")
    server = access.server(Path(kubeconfig) if kubeconfig else None, params.get("context"))
    namespace = namespace or params.get("namespace") or server.namespace
    async with asyncio.timeout(TIMEOUT_S), Client(server, user_agent="gputopo") as client:
        ours, _ = await client.list(PODS, namespace=namespace, label_selector=names.LABEL, type=Pod)
    return [pod.metadata.name for pod in ours]
