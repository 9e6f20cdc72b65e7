"""The ``gputopo`` command.

The module of a sub-command is imported only when it runs, so that help and ``topo`` are fast.
"""

from __future__ import annotations

import importlib

import click
from click.shell_completion import CompletionItem

from dradriver import __version__
from dradriver.errors import DriverError
from dradriver.view.terminal_text import plain

_COMMANDS = {  # name: one line of help; the command is dradriver.cli.<name>:<name>
    "defrag": "Print which pods would have to move to free sets of GPUs. It moves no pod.",
    "explain": "Print why a pod waits, or which GPUs it got.",
    "fault": "Break and repair GPUs of a simulated node.",
    "free": "Print the free GPUs of a cluster: sets by size and link quality, shares, MIG slices.",
    "health": "Print unhealthy GPUs with the repair, and nodes without an agent. Exit status 1 if there are any.",
    "idle": "Print pods with idle GPUs, most idle GPU hours first.",
    "lint": "Print whether the webhook would admit manifests.",
    "nccl": "Write and check NCCL topology files, or print whether one is needed.",
    "plan": "Print the GPUs of a machine that a request would get, offline.",
    "policies": "Check a policies file.",
    "queue": "Print the waiting pods and gangs in their order, with the reasons.",
    "quota": "Convert quotas on a device plugin's GPUs to quotas on claims.",
    "serve": "Serve a live web page of the cluster with your own rights.",
    "simulate": "Compare placement policies and queue orders on a simulated cluster.",
    "slices": "Print the ResourceSlices that the agent of a machine would publish.",
    "tenants": "Print the weight, cap, GPUs, fair-share use and waiting pods of each tenant.",
    "topo": "Print the links, PCIe paths, NICs and NUMA nodes of a machine, or the nodes of a cluster.",
    "uninstall": "Print the pods that need the driver, before or after an uninstallation.",
    "usage": "Print GPU hours, idle GPU hours and their cost.",
    "verify": "Check the driver, a cluster and its nodes: PASS, WARN or FAIL, and what to do.",
}


class _Lazy(click.Group):
    """A click group that knows its commands' names and help without importing them.

    The group prints the program's own errors in one line.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return sorted(_COMMANDS)

    def get_command(  # click's signature, as the two around it
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"dradriver.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of the main command's words. click's own method would import every command."""
        commands = [CompletionItem(name, help=text) for name, text in _COMMANDS.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except DriverError as error:
            raise click.ClickException(plain(str(error))) from error


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """GPU topology for Kubernetes: which GPUs belong together, and which a pod would get.

    Exit status: 0 no problem, 1 a problem (one line on stderr), 2 wrong usage.
    """


def plugin() -> None:
    """Run the main command under the name ``kubectl gputopo``, which its help shows."""
    main(prog_name="kubectl gputopo")
