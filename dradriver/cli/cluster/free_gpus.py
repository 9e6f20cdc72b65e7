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
    """Free sets with the same product, size, level and bandwidth.

    Attributes:
        product: The product of their GPUs.
        size: Number of GPUs in each set.
        level: The level of the worst link in the ring that NCCL forms of a set.
        busbw_gbps: Predicted all-reduce bus bandwidth, GB/s; 0 for single GPUs.
        sets: Number of such sets.
        nodes: Number of nodes that have at least one.
        node: The first of these nodes by name.
    """

    product: str
    size: int
    level: str
    busbw_gbps: float
    sets: int
    nodes: int
    node: str


class SharesLeft(msgspec.Struct, frozen=True, kw_only=True):
    """The room for shares that is left on GPUs of one product.

    Attributes:
        product: The product.
        gpus: Number of GPUs with room, including empty GPUs that a pod can also get whole.
        cores: Free compute, in percent of one GPU, summed over these GPUs.
        memory_mib: Free memory in MiB, summed over these GPUs.
        quarters: Number of shares of 0.25 that have room.
        largest: The largest free compute on one GPU, in percent.
    """

    product: str
    gpus: int
    cores: int
    memory_mib: int
    quarters: int
    largest: int


class SlicesLeft(msgspec.Struct, frozen=True, kw_only=True):
    """The number of MIG slices of one profile that can still be created.

    The number is counted as if no slice of another profile were created. Empty GPUs that a pod can also get whole are
    counted.
    """

    product: str
    profile: str
    slices: int


class FreeGpus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The free GPUs of a cluster.

    Attributes:
        nodes: Number of open nodes: nodes with GPUs that are ready and take new pods.
        unavailable_nodes: Number of other nodes with GPUs: they are not ready, or cordoned.
        gpus: Number of GPUs on the open nodes.
        free: Number of these GPUs that pods can get whole.
        sets: Sets of whole GPUs, the largest first; sets of one size are sorted by bandwidth.
        shares: Room for shares, by product.
        slices: Room for MIG slices, by product and profile.
        gangs: The largest gang of each level of the network, nearest first; empty if the network is not known.
        agents_gone: Nodes whose agent is gone, with pods on their GPUs. These nodes publish no GPUs, so their GPUs do
            not count.
        tentative: GPUs with a tentative placement: chosen for pods, and not allocated by the scheduler yet.
        for_others: GPUs that are free on open nodes, but that only pods of other tenants can get.
    """

    nodes: int
    unavailable_nodes: int
    gpus: int
    free: int
    sets: tuple[Sets, ...]
    shares: tuple[SharesLeft, ...]
    slices: tuple[SlicesLeft, ...]
    gangs: tuple[Gang, ...] = ()
    tentative: int = 0
    for_others: int = 0
    agents_gone: tuple[str, ...] = ()


def free_gpus(scene: Scene, *, namespace: str = "") -> FreeGpus:
    """Return the free GPUs of a listed cluster on nodes that are ready and take new pods, tainted nodes included.

    Args:
        scene: The cluster.
        namespace: The namespace that asks. Some GPUs are divided only for pods of one namespace at a time.
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
        unavailable_nodes=node_count - open_node_count,
        gpus=gpu_count,
        free=free_count,
        sets=_summed_sets(set_counts, set_nodes),
        gangs=largest_gangs(scene, is_open, namespace),
        tentative=_count_tentative(scene),
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
    """Return free sets by product, the largest first; sets of one size are sorted by bandwidth.

    ``counts`` is the number of sets of each kind, ``nodes`` the nodes that have one.
    """

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
    """Return the number of GPUs of a fleet that pods can get whole on open nodes."""
    return sum(int(np.bitwise_count(group.free_masks()[group.at_rows(is_open)]).sum()) for group in fleet.groups)


def _count_tentative(scene: Scene) -> int:
    """Return how many GPUs have a tentative placement, as the metrics count them.

    ``scene`` is the listed cluster.
    """
    cache = scene.picture
    waiting = (claim for claim in cache.claims.values() if claim.pin is not None and not claim.devices)
    nodes = {claim.pin.choice.node for claim in waiting if claim.pin is not None}
    states = Counter(
        state
        for node in nodes
        for (_, state) in gpu_states.gpus_of(node, cache.inventory, cache.accounts, cache.nodes).states.elements()
    )
    return states["tentative"]


def open_nodes(scene: Scene) -> Bools:
    """Return a mask of the nodes that are ready and take new pods.

    Tainted nodes are included. The mask has a bool for each row of the node table of ``scene``, the listed cluster.
    """
    nodes = scene.picture.nodes
    is_open = nodes.eligible(_ANYBODY)
    for name, node in scene.nodes.items():
        if node.spec.unschedulable and (row := nodes.find(name)) is not None:
            is_open[row] = False
    return is_open


def _shares_left(group: NodeGroup, rooms: Rooms, slots: list[int]) -> list[SharesLeft]:
    """Return the room for shares on each GPU of some nodes.

    GPUs without room are left out. ``slots`` has the nodes' positions in ``group``, whose machines are equal.
    """
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
    """Return how many MIG slices of each product and profile have room on some nodes.

    Each profile is counted as if no slice of another profile were created. ``rooms`` and ``slots`` are as for
    ``_shares_left``.
    """
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
