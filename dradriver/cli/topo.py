"""``gputopo topo``: a machine as ``nvidia-smi topo -m`` shows it, and what that means for placement."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from dradriver.cli import text
from dradriver.cli.machine import machine_options, read
from dradriver.topology import profiles
from dradriver.topology.groups import group


@click.command()
@machine_options
@click.option("--list", "list_profiles", is_flag=True, help="List the profiles and stop.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml", "svg", "html"]), default="table", show_default=True,
    help="json and yaml hold the machine, its groups and domains; --machine reads json back. svg and html draw it.",
)  # fmt: skip
@click.option("--no-color", is_flag=True, help="No colours; the variable NO_COLOR does the same.")
@click.option("--cluster", "of_cluster", is_flag=True, help="Show a cluster's nodes, and who holds which GPU.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="With --cluster: only this node; may be repeated.")
@click.option("--kubeconfig", metavar="FILE", help="With --cluster: the kubeconfig; else KUBECONFIG, ~/.kube/config.")
@click.option("--context", metavar="NAME", help="With --cluster: the kubeconfig's context; else its current one.")
def topo(
    source: str | None,
    driver_root: Path | None,
    list_profiles: bool,
    output: str,
    no_color: bool,
    of_cluster: bool,
    nodes: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show a machine: the matrix of nvidia-smi topo -m, groups of GPUs with the best links, NUMA nodes."""
    colour = not no_color and not os.environ.get("NO_COLOR") and _is_terminal()
    if of_cluster:
        if source is not None or driver_root is not None or list_profiles:
            raise click.UsageError(
                "--cluster shows a cluster's machines: leave out --machine, --driver-root and --list"
            )
        from dradriver.cli.cluster.show import show

        show(kubeconfig=kubeconfig, context=context, nodes=nodes, output=output, colour=colour)
        return
    if nodes or kubeconfig is not None or context is not None:
        raise click.UsageError("--node, --kubeconfig and --context are for --cluster")
    if list_profiles:
        _list()
        return
    machine = read(source, driver_root=driver_root)
    groups = group(machine)
    if output == "table":
        click.echo(text.table(machine, groups, colour=colour), color=colour)
        return
    if output in ("svg", "html"):
        from dradriver.cli import picture

        click.echo(picture.svg(machine, groups) if output == "svg" else picture.html(machine, groups), nl=False)
        return
    document = text.document(machine, groups)
    if output == "json":
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _list() -> None:
    names = profiles.names()
    width = max(map(len, names))
    for name in names:
        click.echo(f"{name:{width}}  {text.what(profiles.load(name))}")
