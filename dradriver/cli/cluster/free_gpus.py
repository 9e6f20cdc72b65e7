"""What is free in a cluster: sets of GPUs by size and quality, and what is left of GPUs that are had in parts."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.choice.free_sets import free_sets
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.parts.free_capacity import Rooms
from dradriver.allocator.parts.mig_slices import Slices
from dradriver.allocator.request import Mig
from dradriver.allocator.sets import rank_order
from dradriver.api.base.gang_barrier_device import GO
from dradriver.cli.cluster.largest_gangs import Gang, largest_gangs
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.pod_demands import Ask, Constraints
from dradriver.topology.natural import natural
from dradriver.view.terminal_text import plain

_ANYBODY: Final = Ask((), Constraints(tolerations=(("", ""),)))  # tolerates every taint
_QUARTER: Final = 25  # percent
_ALL: Final = 100


class Sets(msgspec.Struct, frozen=True, kw_only=True):
    """Free sets that are alike.

    Attributes:
        product: Their GPUs' product.
        size: GPUs of each.
        level: The worst step of their rings.
        busbw_gbps: Predicted all-reduce bus bandwidth; 0 of single GPUs.
        sets: How many there are.
        nodes: How many nodes have some.
        node: The first of these by name.
    """

    product: str
    size: int
    level: str
    busbw_gbps: float
    sets: int
    nodes: int
    node: str


class SharesLeft(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of GPUs that are had in shares.

    Attributes:
        product: Their product.
        gpus: How many have something left; empty ones that may also be had whole are among them.
        cores: Percent of compute that is left of all of them together.
        memory_mib: The same of memory.
        quarters: How many shares of 0.25 have room.
        largest: The most percent of compute that one GPU has left.
    """

    product: str
    gpus: int
    cores: int
    memory_mib: int
    quarters: int
    largest: int


class SlicesLeft(msgspec.Struct, frozen=True, kw_only=True):
    """How many MIG slices of a profile have room, if no other is made; empty GPUs that may be had whole are counted."""

    product: str
    profile: str
    slices: int


class FreeGpus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is free.

    Attributes:
        nodes: How many nodes have GPUs, ready and open to pods.
        closed: How many others have some: not ready, or closed to new pods.
        gpus: GPUs of the open nodes.
        free: How many of these may be had whole.
        sets: Sets of whole GPUs, largest first, best first.
        shares: Shares, by product.
        slices: MIG slices, by product and profile.
        gangs: The largest gang of each level of the network, nearest first; none where nothing is known of it.
        agents_gone: Nodes whose agent is gone, with pods on their GPUs: they publish no GPUs, so none of them counts.
        promised: GPUs, or parts of some, that are kept for pods which are not bound yet, those of gangs with a seat
            among them; they are not free.
    """

    nodes: int
    closed: int
    gpus: int
    free: int
    sets: tuple[Sets, ...]
    shares: tuple[SharesLeft, ...]
    slices: tuple[SlicesLeft, ...]
    gangs: tuple[Gang, ...] = ()
    promised: int = 0
    agents_gone: tuple[str, ...] = ()


def free_gpus(scene: Scene, *, namespace: str = "") -> FreeGpus:
    """Return what is free on nodes that are ready and take new pods, tainted ones included.

    Args:
        scene: The cluster.
        namespace: Whose view it is: some GPUs have parts of one namespace at a time.
    """
    picture = scene.picture
    tenant = picture.inventory.tenant(namespace)
    fit = open_nodes(scene)
    sets: dict[tuple[str, int, str, float], tuple[int, list[str]]] = {}
    shares: list[SharesLeft] = []
    slices: Counter[tuple[str, str]] = Counter()
    nodes = every = gpus = free = 0
    for group in picture.fleets.of(namespace).groups:
        slots = np.flatnonzero(group.at_rows(fit))
        every += len(group.names)
        nodes += len(slots)
        gpus += len(slots) * group.tables.size
        if not len(slots):
            continue
        masks = group.free_masks()[slots]
        free += int(np.bitwise_count(masks).sum())
        for mask in np.unique(masks).tolist():
            at = slots[masks == mask].tolist()
            for kind, count in free_sets(group.tables, mask).items():
                key = plain(group.machine.product), *kind
                before, where = sets.get(key, (0, []))
                sets[key] = before + count * len(at), [*where, *(group.names[slot] for slot in at)]
        if group.rooms is not None:
            rooms = group.rooms.seen_by(tenant)
            shares += _shares(group, rooms, slots.tolist())
            slices.update(_slices(group, rooms, slots.tolist()))
    return FreeGpus(
        nodes=nodes,
        closed=every - nodes,
        gpus=gpus,
        free=free,
        sets=tuple(
            Sets(
                product=product, size=size, level=level, busbw_gbps=busbw, sets=count, nodes=len(where),
                node=plain(min(where, key=natural)),
            )
            for (product, size, level, busbw), (count, where) in sorted(
                sets.items(), key=lambda item: (natural(item[0][0]), -item[0][1], -item[0][3], item[0][2])
            )
        ),
        gangs=largest_gangs(scene, fit),
        promised=_promised(scene),
        agents_gone=tuple(plain(name) for name in sorted(scene.agents_gone(), key=natural)),
        shares=_by_product(shares),
        slices=tuple(
            SlicesLeft(product=product, profile=profile, slices=count)
            for (product, profile), count in sorted(slices.items(), key=lambda item: (item[0][0], natural(item[0][1])))
        ),
    )  # fmt: skip


def _promised(scene: Scene) -> int:
    picture = scene.picture
    waiting = (
        key
        for key, claim in picture.claims.items()
        if claim.pin is not None and (claim.devices is None or (claim.seat is not None and GO not in claim.seat.told))
    )
    return len({device for key in waiting for device in picture.inventory.holds.of(key)})


def open_nodes(scene: Scene) -> Bools:
    """Return the nodes that are ready and take new pods, tainted ones included, by row."""
    nodes = scene.picture.nodes
    fit = nodes.eligible(_ANYBODY)
    for name, node in scene.nodes.items():
        if node.spec.unschedulable and (row := nodes.find(name)) is not None:
            fit[row] = False
    return fit


def _shares(group: NodeGroup, rooms: Rooms, slots: list[int]) -> list[SharesLeft]:
    """Return what is left for shares on each GPU of these nodes that has something left."""
    shares = []
    opening = rooms.opening(sliced=False)
    for slot in slots:
        empty = rank_order.positions(int(opening[slot]))
        for position, gpu in enumerate(group.machine.gpus):
            whole = position in empty
            cores = _ALL if whole else int(rooms.cores[position, slot])
            memory = gpu.memory_mib if whole else int(rooms.memory[position, slot])
            if cores and memory:
                quarters = min(cores // _QUARTER, memory // max(1, gpu.memory_mib * _QUARTER // _ALL))
                shares.append(
                    SharesLeft(
                        product=plain(gpu.product), gpus=1, cores=cores, memory_mib=memory, quarters=quarters,
                        largest=cores,
                    )
                )  # fmt: skip
    return shares


def _by_product(shares: list[SharesLeft]) -> tuple[SharesLeft, ...]:
    summed = []
    for product in sorted({share.product for share in shares}, key=natural):
        own = [share for share in shares if share.product == product]
        summed.append(
            SharesLeft(
                product=product,
                gpus=len(own),
                cores=sum(share.cores for share in own),
                memory_mib=sum(share.memory_mib for share in own),
                quarters=sum(share.quarters for share in own),
                largest=max(share.largest for share in own),
            )
        )
    return tuple(summed)


def _slices(group: NodeGroup, rooms: Rooms, slots: list[int]) -> Counter[tuple[str, str]]:
    """Return how many MIG slices of each profile have room on these nodes, each profile for itself."""
    counts: Counter[tuple[str, str]] = Counter()
    if not rooms.offered(sliced=True):
        return counts
    profiles = {profile.name for layout in rooms.layouts if layout is not None for profile in layout.profiles}
    opening = rooms.opening(sliced=True)
    for name in profiles:
        ask = Slices(Mig(profiles=((name,),)))
        used, empty = ask.most(rooms, 0), ask.most_empty(rooms, 0)
        for slot in slots:
            whole = rank_order.positions(int(opening[slot]))
            for position, gpu in enumerate(group.machine.gpus):
                count = int(empty[position]) if position in whole else int(used[position, slot])
                if count:
                    counts[plain(gpu.product), name] += count
    return counts
