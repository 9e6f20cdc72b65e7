"""``gputopo defrag``: the moves of pods that would free sets of GPUs. It moves nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click
import msgspec

from dradriver import __version__
from dradriver.api.base.allocating_driver import bound
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import access, moves, policies_in_force
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    output_options,
    policies_option,
    server_options,
)
from dradriver.cli.cluster.free_gpus import FreeGpus, free_gpus
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import read_whole
from dradriver.cli.cluster.moves import Goes, Move, Simulation
from dradriver.cli.inputs import given_policies
from dradriver.cluster.pods.gpu_time import owner_of
from dradriver.counted import counted
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.view.document import Block, Cell, Column, Document, Notes, Table, report, words
from dradriver.view.output import show_as, warn
from dradriver.view.terminal_text import plain


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that would go elsewhere together. All text in it is safe to print.

    Attributes:
        namespace: Their namespace.
        pods: The pods, and the node that each would have then.
        gang: Whether they are a gang.
        gpus: How many GPUs they hold.
        owner: What makes them again, as ``Job/train``; empty if nothing does.
        gpu_hours: GPU-hours since they were given them: lost if they cannot go on from where they are.
    """

    namespace: str
    pods: dict[str, str]
    gang: bool
    gpus: int
    owner: str
    gpu_hours: float


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """A set that would be free, and who would go for it."""

    node: str
    product: str
    gpus: tuple[int, ...]
    moved: tuple[Moved, ...]


class Sets(msgspec.Struct, frozen=True, kw_only=True):
    """How many free sets of a size there are on machines of a product, now and after the moves."""

    product: str
    size: int
    now: int
    after: int


class Defrag(msgspec.Struct, frozen=True, kw_only=True):
    """What the moves would come to.

    Attributes:
        size: GPUs of each set.
        movable: How many pods and gangs may move.
        freed: The sets, each in the state after those before it.
        sets: Free sets by product and size.
    """

    size: int
    movable: int
    freed: tuple[Freed, ...]
    sets: tuple[Sets, ...]


@click.command()
@click.option("--dry-run", is_flag=True, hidden=True, expose_value=False)
@click.option("--gpus", type=click.IntRange(2, 16), default=8, show_default=True, help="GPUs of the sets to be freed.")
@click.option("--sets", type=click.IntRange(1, 64), default=4, show_default=True, help="How many sets are looked for.")
@server_options
@policies_option
@driver_namespace_option
@output_options
def defrag(
    gpus: int,
    sets: int,
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    driver_namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Say which pods would have to go elsewhere so that sets of GPUs become free; it moves none.

    Those come first that lose least by it.

    Each has a place elsewhere as the controller would give it one: by its own words, with CPU, memory and slots, a gang
    as a whole. Not moved are pods that the scheduler alone placed, that share a claim, or that have parts of GPUs.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    file = given_policies(policies_file)
    plan = asyncio.run(_read(server, file, driver_namespace, size=gpus, most=sets))
    show_as(output, document=lambda: document(plan), data=lambda: msgspec.to_builtins(plan), no_color=no_color)


async def _read(
    server: ServerConfig, file: Policies | None, driver_namespace: str | None, *, size: int, most: int
) -> Defrag:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        followed = await policies_in_force.read(client, server, driver_namespace, file)
        scene = await read_whole(client, server, followed, driver_namespace)
        await scene.fill(scene.picture.inventory.fleet.nodes)
        stand(scene)
        now = time.time()
        movable = moves.movable_workloads(scene)
        where = await moves.volumes(scene, movable)
    for trouble in scene.unread:
        warn(trouble)
    with bound(scene.ledger):
        before = free_gpus(scene)
        simulation = Simulation(scene, movable, where, now=now)
        freed = tuple(_freed(move) for move in simulation.moves(size, most))
        simulation.end()
        return Defrag(size=size, movable=len(movable), freed=freed, sets=_sets(before, free_gpus(scene)))


def _freed(move: Move) -> Freed:
    goes = tuple(map(_moved, move.goes))
    return Freed(node=plain(move.node), product=plain(move.product), gpus=move.gpus, moved=goes)


def _moved(goes: Goes) -> Moved:
    workload = goes.workload
    return Moved(
        namespace=plain(workload.key[0]),
        pods={plain(pod): plain(node) for pod, node in sorted(goes.to.items())},
        gang=workload.is_group,
        gpus=len(workload.devices),
        owner=plain(owner_of(workload.pods[0].pod)),
        gpu_hours=round(goes.gpu_hours, 2),
    )


def _sets(now: FreeGpus, after: FreeGpus) -> tuple[Sets, ...]:
    counts: dict[tuple[str, int], list[int]] = {}
    for number, free in enumerate((now, after)):
        for sets in free.sets:
            counts.setdefault((sets.product, sets.size), [0, 0])[number] += sets.sets
    return tuple(
        Sets(product=product, size=size, now=was, after=then)
        for (product, size), (was, then) in sorted(counts.items(), key=lambda item: (item[0][0], -item[0][1]))
    )


def document(plan: Defrag) -> Document:
    """Return what ``gputopo defrag`` prints: the moves of pods, and the sets of GPUs that they free."""
    lines = [Cell(_said(plan.size, entry)) for entry in plan.freed]
    if not lines:
        movable = counted(plan.movable, "pod or gang", "pods and gangs")
        lines = [Cell(f"no moves free a set of {plan.size} GPUs; {movable} may move")]
    blocks: list[Block] = [Notes(lines=tuple(lines))]
    columns = (
        Column("product"),
        Column("size", number=True),
        Column("free now", number=True),
        Column("then", number=True),
    )
    rows = tuple(words(entry.product, str(entry.size), str(entry.now), str(entry.after)) for entry in plan.sets)
    blocks.append(Table(title="Free sets of whole GPUs", columns=columns, rows=rows))
    return report(*blocks)


def _said(size: int, entry: Freed) -> str:
    gone = "; ".join(map(_goes, entry.moved))
    return f"{entry.node}: a free set of {size} GPUs ({', '.join(map(str, entry.gpus))}) if {gone}"


def _goes(entry: Moved) -> str:
    nodes = ", ".join(dict.fromkeys(entry.pods.values()))
    names = ", ".join(f"{entry.namespace}/{pod}" for pod in entry.pods)
    what = f"the gang {names}" if entry.gang else names
    made = f"made anew by {entry.owner}" if entry.owner else "which nothing makes anew"
    return (
        f"{what} ({counted(entry.gpus, 'GPU')}, {counted(entry.gpu_hours, 'GPU-hour')} so far, {made}) moved to {nodes}"
    )
