"""``gputopo topo``: a machine as ``nvidia-smi topo -m`` shows it, and its groups of GPUs for placement."""

from __future__ import annotations

from pathlib import Path

import click

from dradriver.cli import machine_view
from dradriver.cli.cluster.cluster_options import namespace_options, only_namespace, output_formats, server_options
from dradriver.cli.machine_source import machine_options, nccl_version_option, read
from dradriver.topology import profiles
from dradriver.topology.groups import group, unlinked
from dradriver.topology.peer_access import kept_off
from dradriver.view.document import report, table
from dradriver.view.output import show_as


@click.command()
@machine_options
@nccl_version_option
@click.option("--list", "list_profiles", is_flag=True, help="Print the names of the profiles.")
@output_formats(
    "svg", "html",
    said="json and yaml contain all of a machine, and --machine reads json back. svg and html draw it.",
)  # fmt: skip
@click.option(
    "--cluster", "of_cluster", is_flag=True, help="Print the nodes of a cluster. The options below are for it."
)
@click.option(
    "--node", "nodes", multiple=True, metavar="NAME",
    help="Print the matrix of this node and the pod of each GPU. It can be repeated.",
)  # fmt: skip
@click.option("--detail", is_flag=True, help="Print all nodes like this.")
@namespace_options("Only nodes with GPUs that this namespace uses. Default: all nodes.")
@server_options
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
    detail: bool,
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Print a machine: the matrix of nvidia-smi topo -m, groups of GPUs with the best links, NUMA nodes.

    With --cluster, print the nodes of a cluster: which GPUs are free, unhealthy and allocated.
    """
    if of_cluster:
        if source is not None or driver_root is not None or list_profiles or product or cpu or nccl_version:
            raise click.UsageError(
                "--cluster shows a cluster's machines: leave out --machine, --driver-root, --product, --cpu, "
                "--nccl-version and --list"
            )
        from dradriver.cli.cluster.cluster_view import show_cluster

        show_cluster(
            kubeconfig=kubeconfig,
            context=context,
            nodes=nodes,
            detail=detail,
            namespace=only_namespace(namespace, all_namespaces=all_namespaces),
            output=output,
            no_color=no_color,
        )
        return
    if nodes or detail or namespace is not None or all_namespaces or kubeconfig is not None or context is not None:
        raise click.UsageError("--node, --detail, -n, -A, --kubeconfig and --context are for --cluster")
    if list_profiles:
        _list_profiles(output, no_color=no_color)
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


def _list_profiles(output: str, *, no_color: bool) -> None:
    machines = {name: profiles.load(name) for name in profiles.names()}
    show_as(
        output,
        document=lambda: report(table(rows=[(name, machine_view.what(each)) for name, each in machines.items()])),
        data=lambda: [
            {"profile": name, "gpus": len(each.gpus), "product": each.product} for name, each in machines.items()
        ],
        no_color=no_color,
    )
