"""The ``gputopo`` command; a sub-command's module is imported when it is run, so that help and ``topo`` stay quick."""

from __future__ import annotations

import importlib

import click
from click.shell_completion import CompletionItem

from dradriver import __version__
from dradriver.errors import DriverError
from dradriver.view.terminal_text import plain

_COMMANDS = {  # name: one line of help; the command is dradriver.cli.<name>:<name>
    "defrag": "Say which pods would have to move so that sets of GPUs become free; it moves none.",
    "explain": "Say why a pod waits, who holds what it wants, and what it got.",
    "fault": "Break GPUs of a simulated node, and mend them.",
    "free": "Show what is free in a cluster: sets of GPUs by size and quality, shares, MIG slices.",
    "health": "List unhealthy GPUs with the repair, and nodes without an agent; the exit status says if there are any.",
    "idle": "List pods whose GPUs do nothing, the dearest first.",
    "lint": "Check manifests as the webhook would: refused or admitted, and as what.",
    "nccl": "NCCL topology files: write, check, explain whether one is needed.",
    "plan": "Choose GPUs of a machine for a request, offline.",
    "policies": "Check a policies file: what administrators say of GPUs, names, weights, NCCL.",
    "queue": "List who waits for GPUs, in which order, and why.",
    "quota": "Make quotas that count a device plugin's GPUs count claims.",
    "serve": "Serve a page of the cluster that stays up to date, with your own rights.",
    "simulate": "Compare placement policies and orders on a simulated cluster.",
    "slices": "Print the ResourceSlices that a machine's node would publish, before there is such a node.",
    "tenants": "Show what each tenant may have, has, has had and waits for.",
    "topo": "Show a machine: links, PCIe paths, NICs, groups, NUMA; or a cluster and who holds which GPU.",
    "uninstall": "List the pods that need the driver, before or after an uninstallation.",
    "usage": "Say who had how many GPU hours, how many of these did nothing, and what they cost.",
    "verify": "Check the driver, a cluster and its nodes: PASS, WARN or FAIL, and what to do.",
}


class _Lazy(click.Group):
    """A group that knows its commands' names and help without importing them, and turns our errors into one line."""

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
        """Return the completions of the main command's words; click's own way would import every command."""
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

    Exit status: 0 all is well, 1 a problem (one line on stderr), 2 wrong usage.
    """


def plugin() -> None:
    """Run the main command as ``kubectl gputopo``: help shows what users type, not the program's name."""
    main(prog_name="kubectl gputopo")
