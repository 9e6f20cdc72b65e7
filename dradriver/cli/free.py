"""``gputopo free``: the free GPUs of a cluster, by size and quality of sets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click
import msgspec

from dradriver import __version__
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import access, installation, policies_in_force
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    output_formats,
    policies_option,
    server_options,
)
from dradriver.cli.cluster.free_gpus import FreeGpus, free_gpus
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import Scene, read_whole
from dradriver.cli.inputs import given_policies
from dradriver.cluster.views.gone_node_views import AGENT_GONE
from dradriver.counted import counted, first_of
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.view.document import Bars, Block, Cell, Column, Document, Notes, Panel, Table, Tone, report, words
from dradriver.view.output import show_as, warn

_MOST_NODES: Final = 5  # that are named


@click.command()
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Count fractions as this namespace sees them. Some GPUs serve one namespace at a time.",
)
@server_options
@policies_option
@driver_namespace_option
@output_formats("svg", "html", said="svg and html draw the number of sets.")
def free(
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    driver_namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the free GPUs: how many sets of 1, 2, 4 and 8 GPUs, how well they are linked, and free fractions.

    Sets of one size are counted as pods would get them, one after another. Each size is counted as if no set of another
    size were taken.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    file = given_policies(policies_file)
    scene = asyncio.run(_read(server, file, driver_namespace))
    namespace = namespace or server.namespace
    stand(scene, namespace)
    left = free_gpus(scene, namespace=namespace)
    installation.tell(scene.absence, output, no_color=no_color)
    show_as(output, document=lambda: document(left), data=lambda: msgspec.to_builtins(left), no_color=no_color)


async def _read(server: ServerConfig, file: Policies | None, driver_namespace: str | None) -> Scene:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        followed = await policies_in_force.read(client, server, driver_namespace, file)
        scene = await read_whole(client, server, followed, driver_namespace, pods_too=False)
    for trouble in scene.unread:
        warn(trouble)
    return scene


def document(left: FreeGpus) -> Document:
    """Return the output of ``gputopo free``: free sets of GPUs by size, and room for fractions of GPUs."""
    more_nodes = counted(left.unavailable_nodes, "more node is", "more nodes are")
    unavailable = f"; {more_nodes} not ready or cordoned" if left.unavailable_nodes else ""
    tentative = counted(left.tentative, "GPU has", "GPUs have")
    tentative = f"; {tentative} a tentative placement" if left.tentative else ""
    more = counted(left.for_others, "more is", "more are")
    others = f"; {more} free for other tenants only" if left.for_others else ""
    are = "is" if left.free == 1 else "are"
    nodes = counted(left.nodes, "node")
    title = f"{left.free} of {counted(left.gpus, 'GPU')} {are} free on {nodes}{others}{tentative}{unavailable}"
    blocks: list[Block] = [Notes(lines=(Cell(title),))]
    if left.agents_gone:
        nodes = first_of(left.agents_gone, _MOST_NODES)
        message = f"{AGENT_GONE}: {nodes}. Pods use their GPUs, which are not counted here. See gputopo verify."
        blocks.append(Notes(lines=(Cell(message, Tone.ERROR),)))
    blocks += [_sets_table(left), _shares_table(left), _slices_table(left)]
    if left.gangs:
        blocks.append(_gangs_table(left))
    if left.sets:
        blocks.append(_picture(left, title))
    return report(*blocks, title=title)


def _sets_table(left: FreeGpus) -> Table:
    columns = (
        Column("product"), Column("size", number=True), Column("sets", number=True), Column("link"),
        Column("all-reduce"), Column("nodes", number=True), Column("first node"),
    )  # fmt: skip
    rows = tuple(
        words(
            group.product, str(group.size), str(group.sets), group.level,
            f"{group.busbw_gbps:g} GB/s" if group.busbw_gbps else "", str(group.nodes), group.node,
        )
        for group in left.sets
    )  # fmt: skip
    return Table(title="Sets of whole GPUs", columns=columns, rows=rows)


def _shares_table(left: FreeGpus) -> Table:
    heads = ("product", "GPUs", "compute", "memory", "shares of 0.25", "largest share")
    rows = tuple(
        words(
            share.product, str(share.gpus), f"{share.cores} %", f"{share.memory_mib} MiB", str(share.quarters),
            f"{share.largest} %",
        )
        for share in left.shares
    )  # fmt: skip
    return Table(title="Free for shares", columns=tuple(map(Column, heads)), rows=rows)


def _slices_table(left: FreeGpus) -> Table:
    rows = tuple(words(profile.product, profile.profile, str(profile.slices)) for profile in left.slices)
    return Table(title="Free for MIG slices", columns=tuple(map(Column, ("product", "profile", "slices"))), rows=rows)


def _gangs_table(left: FreeGpus) -> Table:
    columns = (
        Column("level"), Column("GPUs of a pod", number=True), Column("pods", number=True),
        Column("nodes", number=True), Column("domain"),
    )  # fmt: skip
    rows = tuple(words(gang.level, str(gang.gpus), str(gang.pods), str(gang.nodes), gang.domain) for gang in left.gangs)
    return Table(title="Largest gang by network level", columns=columns, rows=rows)


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
