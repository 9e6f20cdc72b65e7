"""``gputopo free``: what is free in a cluster, by size and quality."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click
import msgspec

from dradriver import __version__
from dradriver.api.policies.model import Policies
from dradriver.cli.cluster import access, policies_in_force
from dradriver.cli.cluster.cluster_options import driver_namespace_option, policies_option, server_options
from dradriver.cli.cluster.free_gpus import FreeGpus, free_gpus
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import read_whole
from dradriver.cli.inputs import given_policies
from dradriver.cluster.views.gone_node_views import AGENT_GONE
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.view.document import Bars, Block, Cell, Column, Document, Notes, Panel, Table, Tone, report, words
from dradriver.view.output import FORMATS, show_as, warn

_MOST_NODES: Final = 5  # that are named


@click.command()
@click.option("-n", "--namespace", metavar="NAME", help="Whose view: parts of some GPUs are one namespace's at a time.")
@server_options
@policies_option
@driver_namespace_option
@click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True,
    help="svg and html draw how many sets there are.",
)  # fmt: skip
@click.option("--no-color", is_flag=True, help="No colours; the variable NO_COLOR does the same.")
def free(
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    driver_namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Show what is free: how many sets of 1, 2, 4 and 8 GPUs, how well they are linked, and what is left in parts.

    Sets are counted as pods would get them, one after another, each size for itself.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    file = given_policies(policies_file)
    left = asyncio.run(_read(server, namespace or server.namespace, file, driver_namespace))
    show_as(output, document=lambda: document(left), data=lambda: msgspec.to_builtins(left), no_color=no_color)


async def _read(server: ServerConfig, namespace: str, file: Policies | None, driver_namespace: str | None) -> FreeGpus:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        followed = await policies_in_force.read(client, server, driver_namespace, file)
        scene = await read_whole(client, server, followed, pods_too=False)
    for trouble in scene.unread:
        warn(trouble)
    stand(scene)
    return free_gpus(scene, namespace=namespace)


def document(left: FreeGpus) -> Document:
    """Return what ``gputopo free`` prints: free sets of GPUs by size, and what is free in parts."""
    closed = f"; {left.closed} more are not ready or closed to new pods" if left.closed else ""
    promised = f"; {left.promised} are promised to pods that are not bound yet" if left.promised else ""
    title = f"{left.free} of {left.gpus} GPUs are free on {left.nodes} nodes{promised}{closed}"
    blocks: list[Block] = [Notes(lines=(Cell(title),))]
    if left.agents_gone:
        named = ", ".join(left.agents_gone[:_MOST_NODES]) + ", ..." * (len(left.agents_gone) > _MOST_NODES)
        said = f"{AGENT_GONE}: {named}; pods run on their GPUs, which are not counted here; see gputopo verify"
        blocks.append(Notes(lines=(Cell(said, Tone.ERROR),)))
    columns = (
        Column("product"), Column("size", number=True), Column("sets", number=True), Column("level"),
        Column("all-reduce"), Column("nodes", number=True), Column("such as"),
    )  # fmt: skip
    rows = [
        words(
            one.product, str(one.size), str(one.sets), one.level, f"{one.busbw_gbps:g} GB/s" if one.busbw_gbps else "",
            str(one.nodes), one.node,
        )
        for one in left.sets
    ]  # fmt: skip
    blocks.append(Table(title="Sets of whole GPUs", columns=columns, rows=tuple(rows)))
    shares = tuple(
        words(
            one.product, str(one.gpus), f"{one.cores} %", f"{one.memory_mib} MiB", str(one.quarters),
            f"{one.largest} %",
        )
        for one in left.shares
    )  # fmt: skip
    heads = ("product", "GPUs", "compute", "memory", "shares of 0.25", "largest share")
    blocks.append(Table(title="Left for shares", columns=tuple(Column(head) for head in heads), rows=shares))
    slices = tuple(words(one.product, one.profile, str(one.slices)) for one in left.slices)
    named_columns = tuple(Column(head) for head in ("product", "profile", "slices"))
    blocks.append(Table(title="Left for MIG slices", columns=named_columns, rows=slices))
    if left.gangs:
        gangs = tuple(words(one.level, str(one.gpus), str(one.pods), str(one.nodes), one.domain) for one in left.gangs)
        counted = (
            Column("level"), Column("GPUs a pod", number=True), Column("pods", number=True),
            Column("nodes", number=True), Column("where"),
        )  # fmt: skip
        blocks.append(Table(title="Largest gang by level of the network", columns=counted, rows=gangs))
    if left.sets:
        blocks.append(_picture(left, title))
    return report(*blocks, title=title)


def _picture(left: FreeGpus, title: str) -> Bars:
    sizes = dict.fromkeys(one.size for one in sorted(left.sets, key=lambda one: -one.size))
    panels = tuple(
        Panel(
            title=f"sets of {size}" if size > 1 else "single GPUs",
            bars=tuple(
                (" ".join([one.product, one.level]).strip(), float(one.sets), Tone.OURS)
                for one in left.sets
                if one.size == size
            ),
        )
        for size in sizes
    )
    return Bars(title=title, panels=panels)
