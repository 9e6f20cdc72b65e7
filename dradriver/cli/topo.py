"""``gputopo topo``: a machine as ``nvidia-smi topo -m`` shows it, and what that means for placement."""

from __future__ import annotations

from pathlib import Path

import click

from dradriver.cli import machine_view
from dradriver.cli.machine_source import machine_options, nccl_version_option, read
from dradriver.topology import profiles
from dradriver.topology.groups import group, unlinked
from dradriver.topology.peer_access import kept_off
from dradriver.view.document import report, table
from dradriver.view.output import FORMATS, show, show_as


@click.command()
@machine_options
@nccl_version_option
@click.option("--list", "list_profiles", is_flag=True, help="List the profiles and stop.")
@click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True,
    help="json and yaml hold the machine, its groups and domains; --machine reads json back. svg and html draw it.",
)  # fmt: skip
@click.option("--no-color", is_flag=True, help="No colours; the variable NO_COLOR does the same.")
@click.option("--cluster", "of_cluster", is_flag=True, help="Show a cluster's nodes, and who holds which GPU.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="With --cluster: only this node; may be repeated.")
@click.option(
    "-n", "--namespace", metavar="NAME", help="With --cluster: only nodes of whose GPUs this namespace holds some."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="With --cluster: all nodes, as without -n.")
@click.option("--kubeconfig", metavar="FILE", help="With --cluster: the kubeconfig; else KUBECONFIG, ~/.kube/config.")
@click.option("--context", metavar="NAME", help="With --cluster: the kubeconfig's context; else its current one.")
def topo(
    source: str | None,
    driver_root: Path | None,
    product: str,
    cpu: str,
    nccl_version: str,
    list_profiles: bool,
    output: str,
    no_color: bool,
    of_cluster: bool,
    nodes: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show a machine: the matrix of nvidia-smi topo -m, groups of GPUs with the best links, NUMA nodes."""
    if of_cluster:
        if source is not None or driver_root is not None or list_profiles or product or cpu or nccl_version:
            raise click.UsageError(
                "--cluster shows a cluster's machines: leave out --machine, --driver-root, --product, --cpu, "
                "--nccl-version and --list"
            )
        from dradriver.cli.cluster.cluster_view import show_cluster

        if namespace is not None and all_namespaces:
            raise click.UsageError("--cluster: -n or -A; not both")
        show_cluster(
            kubeconfig=kubeconfig, context=context, nodes=nodes, namespace=namespace, output=output, no_color=no_color
        )
        return
    if nodes or namespace is not None or all_namespaces or kubeconfig is not None or context is not None:
        raise click.UsageError("--node, -n, -A, --kubeconfig and --context are for --cluster")
    if list_profiles:
        _list_profiles()
        return
    machine = read(source, driver_root=driver_root, product=product, cpu=cpu, nccl_version=nccl_version)
    # Groups of well-linked GPUs, without the GPUs that no pod may get.
    groups = group(unlinked(machine, kept_off(machine)))
    show_as(
        output,
        document=lambda: machine_view.document(machine, groups),
        data=lambda: machine_view.data(machine, groups),
        no_color=no_color,
    )


def _list_profiles() -> None:
    rows = [(name, machine_view.what(profiles.load(name))) for name in profiles.names()]
    show(report(table(rows=rows)))
