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
from dradriver.cli.cluster import access, installation, moves, policies_in_force
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
    """Pods that would move to other nodes together. All text in it is safe to print.

    Attributes:
        namespace: Their namespace.
        pods: The pods, with the node of each after the move.
        gang: Whether they are a gang.
        gpus: Number of GPUs that they have.
        owner: The object that creates them again, as ``Job/train``; empty if there is none.
        gpu_hours: GPU-hours since the GPUs were allocated. These hours are lost if the pods cannot resume their work.
    """

    namespace: str
    pods: dict[str, str]
    gang: bool
    gpus: int
    owner: str
    gpu_hours: float


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """A set that would become free, and the pods that would move for it."""

    node: str
    product: str
    gpus: tuple[int, ...]
    moved: tuple[Moved, ...]


class Sets(msgspec.Struct, frozen=True, kw_only=True):
    """The number of free sets of one size on machines of one product, before and after the moves."""

    product: str
    size: int
    now: int
    after: int


class Defrag(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``gputopo defrag``: the moves and the free sets after them.

    Attributes:
        size: GPUs of each set.
        movable: Number of pods and gangs that can move.
        freed: The sets of GPUs that become free. The moves for a set assume that the moves for the sets before it are
            done.
        sets: For each product and set size: how many sets are free now, and how many after all moves.
    """

    size: int
    movable: int
    freed: tuple[Freed, ...]
    sets: tuple[Sets, ...]


@click.command()
@click.option("--dry-run", is_flag=True, hidden=True, expose_value=False)
@click.option(
    "--gpus", type=click.IntRange(2, 16), default=8, show_default=True, help="Number of GPUs of each set to free."
)
@click.option("--sets", type=click.IntRange(1, 64), default=4, show_default=True, help="Number of sets to look for.")
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
    """Print which pods would have to move so that sets of GPUs become free. The command moves no pod.

    Moves that lose the fewest GPU hours come first.

    The controller's own decision finds the new place of each pod, with its annotations, CPU, memory and the slots for
    pods. All pods of a gang move together. A pod is not moved if the scheduler alone placed it, if it shares a claim,
    or if it has fractions of GPUs.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    file = given_policies(policies_file)
    plan, absence = asyncio.run(_read(server, file, driver_namespace, size=gpus, most=sets))
    installation.tell(absence, output, no_color=no_color)
    show_as(output, document=lambda: document(plan), data=lambda: msgspec.to_builtins(plan), no_color=no_color)


async def _read(
    server: ServerConfig, file: Policies | None, driver_namespace: str | None, *, size: int, most: int
) -> tuple[Defrag, str]:
    """Return the moves, and sentences that no driver is installed (empty if it is, or if that is not known).

    ``size`` is the number of GPUs in a set that the moves free; ``most`` is how many sets they free at most.
    """
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
        sets = _sets(before, free_gpus(scene))
        return Defrag(size=size, movable=len(movable), freed=freed, sets=sets), scene.absence


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
    """Return the output of ``gputopo defrag``: the moves of pods, and the sets of GPUs that they free."""
    lines = [Cell(_said(plan.size, entry)) for entry in plan.freed]
    if not lines:
        movable = counted(plan.movable, "pod or gang", "pods and gangs")
        lines = [Cell(f"no moves free a set of {plan.size} GPUs. {movable} can move.")]
    blocks: list[Block] = [Notes(lines=tuple(lines))]
    columns = (
        Column("product"),
        Column("set size", number=True),
        Column("free now", number=True),
        Column("after the moves", number=True),
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
    made = f"created again by {entry.owner}" if entry.owner else "not created again by any owner"
    return (
        f"{what} ({counted(entry.gpus, 'GPU')}, {counted(entry.gpu_hours, 'GPU-hour')} so far, {made}) moved to {nodes}"
    )
