"""Free GPUs of a cluster, for ``gputopo free`` and the page: sets of whole GPUs, room for shares and MIG slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from dradriver.allocator.choice.free_set_counts import free_sets
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.parts.free_capacity import Rooms
from dradriver.allocator.parts.mig_slices import Slices
from dradriver.allocator.request import Mig
from dradriver.allocator.sets.masks import positions_of
from dradriver.cli.cluster.largest_gangs import Gang, largest_gangs
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cluster.derived import gpu_states
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.pod_demands import Ask, Constraints
from dradriver.topology.natural import natural
from dradriver.view.terminal_text import plain

_ANYBODY: Final = Ask((), Constraints(tolerations=(("", ""),)))  # tolerates every taint
_QUARTER: Final = 25  # percent
_ALL: Final = 100


class _SetKey(NamedTuple):
    product: str
    size: int
    level: str
    busbw_gbps: float


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
        promised: GPUs that are promised to pods, or parts of them, and that the scheduler has not allocated yet.
        for_others: GPUs that are free on open nodes, and that only other tenants may have.
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
    for_others: int = 0
    agents_gone: tuple[str, ...] = ()


def free_gpus(scene: Scene, *, namespace: str = "") -> FreeGpus:
    """Return the free GPUs of a listed cluster on nodes that are ready and take new pods, tainted nodes included.

    Args:
        scene: The cluster.
        namespace: The namespace that asks. Some GPUs are divided for one namespace at a time.
    """
    cache = scene.picture  # the cluster cache, as the controller has it
    tenant = cache.inventory.tenant(namespace)
    is_open = open_nodes(scene)
    set_counts: Counter[_SetKey] = Counter()
    set_nodes: dict[_SetKey, list[str]] = {}
    shares: list[SharesLeft] = []
    slice_counts: Counter[tuple[str, str]] = Counter()
    fleet = cache.fleets.of(namespace)
    free_count = _count_free(fleet, is_open)
    node_count = open_node_count = gpu_count = 0
    # A group has the nodes with machines that are alike; a slot is the position of a node in it. The GPUs are those
    # that workloads of the namespace can use, without other tenants' partitions.
    for group in fleet.groups:
        slots = np.flatnonzero(group.at_rows(is_open))
        node_count += len(group.names)
        open_node_count += len(slots)
        gpu_count += len(slots) * group.tables.size
        if not len(slots):
            continue
        masks = group.free_masks()[slots]  # by node: its free GPUs, one bit for each
        # Nodes with the same free GPUs have the same free sets: count these once for all of them.
        for mask in np.unique(masks).tolist():
            node_names = [group.names[slot] for slot in slots[masks == mask].tolist()]
            # By size, worst link and bandwidth: how many pods could get such a set, one after another.
            for size_level_busbw, count in free_sets(group.tables, mask).items():
                key = _SetKey(plain(group.machine.product), *size_level_busbw)
                set_counts[key] += count * len(node_names)
                set_nodes.setdefault(key, []).extend(node_names)
        if group.rooms is not None:  # GPUs that are divided: what is left of them, as the tenant may use it
            rooms = group.rooms.seen_by(tenant)
            shares += _shares_left(group, rooms, slots.tolist())
            slice_counts.update(_slices_left(group, rooms, slots.tolist()))
    return FreeGpus(
        nodes=open_node_count,
        closed=node_count - open_node_count,
        gpus=gpu_count,
        free=free_count,
        sets=_summed_sets(set_counts, set_nodes),
        gangs=largest_gangs(scene, is_open, namespace),
        promised=_count_promised(scene),
        for_others=_count_free(cache.inventory.fleet, is_open) - free_count,
        agents_gone=tuple(plain(name) for name in sorted(scene.agents_gone(), key=natural)),
        shares=_summed_by_product(shares),
        slices=tuple(
            SlicesLeft(product=product, profile=profile, slices=count)
            for (product, profile), count in sorted(
                slice_counts.items(), key=lambda item: (item[0][0], natural(item[0][1]))
            )
        ),
    )  # fmt: skip


def _summed_sets(counts: Mapping[_SetKey, int], nodes: Mapping[_SetKey, list[str]]) -> tuple[Sets, ...]:
    """Return free sets by product, the largest first, of these the fastest first."""

    def order(key: _SetKey) -> tuple[object, ...]:
        return natural(key.product), -key.size, -key.busbw_gbps, key.level

    return tuple(
        Sets(
            product=key.product,
            size=key.size,
            level=key.level,
            busbw_gbps=key.busbw_gbps,
            sets=counts[key],
            nodes=len(nodes[key]),
            node=plain(min(nodes[key], key=natural)),
        )
        for key in sorted(counts, key=order)
    )


def _count_free(fleet: Fleet, is_open: Bools) -> int:
    """Return how many GPUs of a fleet may be had whole on open nodes."""
    return sum(int(np.bitwise_count(group.free_masks()[group.at_rows(is_open)]).sum()) for group in fleet.groups)


def _count_promised(scene: Scene) -> int:
    """Return how many GPUs are promised to pods that the scheduler has not given any, as the metrics count them."""
    cache = scene.picture
    waiting = (claim for claim in cache.claims.values() if claim.pin is not None and not claim.devices)
    nodes = {claim.pin.choice.node for claim in waiting if claim.pin is not None}
    states = Counter(
        state
        for node in nodes
        for (_, state) in gpu_states.gpus_of(node, cache.inventory, cache.accounts, cache.nodes).states.elements()
    )
    return states["promised"]


def open_nodes(scene: Scene) -> Bools:
    """Return the nodes whose free GPUs count, by row: nodes that are ready and take new pods, tainted ones included."""
    nodes = scene.picture.nodes
    is_open = nodes.eligible(_ANYBODY)
    for name, node in scene.nodes.items():
        if node.spec.unschedulable and (row := nodes.find(name)) is not None:
            is_open[row] = False
    return is_open


def _shares_left(group: NodeGroup, rooms: Rooms, slots: list[int]) -> list[SharesLeft]:
    """Return what is left for shares on each GPU of these nodes that has something left."""
    shares = []
    empty_masks = rooms.opening(sliced=False)  # by node: empty GPUs that may be divided, as a bit mask
    for slot in slots:
        empty = positions_of(int(empty_masks[slot]))
        for position, gpu in enumerate(group.machine.gpus):
            is_empty = position in empty
            cores = _ALL if is_empty else int(rooms.cores[position, slot])
            memory = gpu.memory_mib if is_empty else int(rooms.memory[position, slot])
            if cores and memory:
                quarters = min(cores // _QUARTER, memory // max(1, gpu.memory_mib * _QUARTER // _ALL))
                shares.append(
                    SharesLeft(
                        product=plain(gpu.product), gpus=1, cores=cores, memory_mib=memory, quarters=quarters,
                        largest=cores,
                    )
                )  # fmt: skip
    return shares


def _summed_by_product(shares: list[SharesLeft]) -> tuple[SharesLeft, ...]:
    summed = []
    for product in sorted({share.product for share in shares}, key=natural):
        of_product = [share for share in shares if share.product == product]
        summed.append(
            SharesLeft(
                product=product,
                gpus=len(of_product),
                cores=sum(share.cores for share in of_product),
                memory_mib=sum(share.memory_mib for share in of_product),
                quarters=sum(share.quarters for share in of_product),
                largest=max(share.largest for share in of_product),
            )
        )
    return tuple(summed)


def _slices_left(group: NodeGroup, rooms: Rooms, slots: list[int]) -> Counter[tuple[str, str]]:
    """Return how many MIG slices have room on these nodes, by product and profile, as if no other profile were used."""
    counts: Counter[tuple[str, str]] = Counter()
    if not rooms.offered(sliced=True):
        return counts
    profiles = {profile.name for layout in rooms.layouts if layout is not None for profile in layout.profiles}
    empty_masks = rooms.opening(sliced=True)  # by node: empty GPUs that may be divided, as a bit mask
    for name in profiles:
        ask = Slices(Mig(profiles=((name,),)))
        on_used, on_empty = ask.most(rooms, 0), ask.most_empty(rooms, 0)
        for slot in slots:
            empty = positions_of(int(empty_masks[slot]))
            for position, gpu in enumerate(group.machine.gpus):
                count = int(on_empty[position]) if position in empty else int(on_used[position, slot])
                if count:
                    counts[plain(gpu.product), name] += count
    return counts
