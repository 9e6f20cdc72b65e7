"""The placement policies that are compared: each returns the GPUs that it would take in a simulated cluster."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from dradriver.allocator import Choice, GangRequest, NoPlaceError, Whole, place_gang
from dradriver.allocator.sets.masks import mask_of, positions_of
from dradriver.cli.simulator import mapa
from dradriver.cli.simulator.simulated_cluster import Cluster, Part
from dradriver.topology.groups import group
from dradriver.topology.machine import Machine, PathType

Pod: TypeAlias = Callable[[Cluster, int, random.Random], Part | None]

# What go-gpuallocator gives a pair by its PCIe path, beside 100 for every NVLink.
_PAIR: Final = {
    PathType.SELF: 0, PathType.SYS: 10, PathType.NODE: 20, PathType.PHB: 30, PathType.PXB: 40, PathType.PIX: 50,
}  # fmt: skip


def chance(cluster: Cluster, gpus: int, rng: random.Random) -> Part | None:
    """Return the placement of the random policy: any free GPUs of any node with room.

    None if no node has room.
    """
    nodes = [node for node, mask in enumerate(cluster.free) if mask.bit_count() >= gpus]
    if not nodes:
        return None
    node = rng.choice(nodes)
    return Part(node, mask_of(tuple(rng.sample(positions_of(cluster.free[node]), gpus))))


def first_fit(cluster: Cluster, gpus: int, rng: random.Random) -> Part | None:  # noqa: ARG001  # one signature
    """Return the placement of the first-fit policy: the lowest free GPUs of the first node that has room.

    None if no node has room. The scheduler does this if devices have no topology attributes.
    """
    node = _first(cluster, gpus)
    return None if node is None else Part(node, mask_of(positions_of(cluster.free[node])[:gpus]))


def link_scores(cluster: Cluster, gpus: int, rng: random.Random) -> Part | None:  # noqa: ARG001  # one signature
    """Return the placement of go-gpuallocator, NVIDIA's library that scores sets by their links.

    The library takes its best set on the first node that has room (``best_partition``). None if no node has room.
    """
    node = _first(cluster, gpus)
    return None if node is None else Part(node, best_partition(cluster.machines[node], cluster.free[node], gpus))


def preserve(cluster: Cluster, gpus: int, rng: random.Random) -> Part | None:  # noqa: ARG001  # one signature
    """Return the placement of MAPA's policy Preserve, on the first node that has room.

    MAPA is a published placement policy. A job of several GPUs gets the set with the fastest ring; see ``mapa``. None
    if no node has room.
    """
    node = _first(cluster, gpus)
    return None if node is None else Part(node, mapa.preserve(cluster.machines[node], cluster.free[node], gpus))


def ladder(cluster: Cluster, gpus: int, rng: random.Random) -> Part | None:  # noqa: ARG001  # one signature
    """Return the placement by device attributes alone, as a claim's list of alternatives gives it.

    These are the first free GPUs in one group of linked GPUs, else in one NUMA node, else anywhere. None if no node has
    room.
    """
    for rung in range(3):
        for node, free in enumerate(cluster.free):
            for devices in _rungs(cluster.machines[node], gpus)[rung]:
                fitting = [place for place in devices if free >> place & 1]
                if len(fitting) >= gpus:
                    return Part(node, mask_of(tuple(fitting[:gpus])))
    return None


def ours(cluster: Cluster, gpus: int, rng: random.Random) -> Part | None:  # noqa: ARG001  # one signature
    """Return the placement of the driver's own allocator over all simulated nodes, for one pod at a time.

    None if no node has room.
    """
    try:
        choice = cluster.fleet.rank(_pod(cluster, gpus), limit=1)[0]
    except NoPlaceError:
        return None
    return _part(cluster, choice)


def _pod(cluster: Cluster, gpus: int) -> Whole:
    return Whole(containers=(gpus,), vendor=cluster.vendor)


def gang(cluster: Cluster, gpus: int, pods: int) -> list[Part] | None:
    """Return the placement of the driver's own allocator for all pods of a simulated job at once, or None."""
    try:
        placed = place_gang(cluster.fleet, GangRequest(pod=_pod(cluster, gpus), pods=pods))
    except NoPlaceError:
        return None
    return [_part(cluster, choice) for choice in placed.pods]


POLICIES: Final[Mapping[str, Pod]] = {
    "random": chance,
    "first fit": first_fit,
    "go-gpuallocator": link_scores,
    "mapa preserve": preserve,
    "static ladder": ladder,
    "ours": ours,
    "ours, gangs": ours,
}
GANGS: Final = "ours, gangs"


@lru_cache(maxsize=65536)
def best_partition(machine: Machine, free: int, gpus: int) -> int:
    """Return the set of a node's free GPUs that go-gpuallocator takes, as a mask.

    NVIDIA's library go-gpuallocator scores sets by their links. The library compares all partitions of the free GPUs
    into sets of this size and a remainder, by total score. The result is the best set of the best partition. The
    remainder counts in the score, too, but is never returned here (go-gpuallocator returns it in some cases).
    """
    places = positions_of(free)
    rest_size = len(places) % gpus
    best: tuple[int, int, int] | None = None
    for rest in itertools.combinations(places, rest_size):
        total, top, chosen = _partition(machine, free ^ mask_of(rest), gpus)
        value = (total + _score(machine, mask_of(rest)), top, chosen)
        if best is None or value[:2] > best[:2]:
            best = value
    assert best is not None
    return best[2]


@lru_cache(maxsize=65536)
def _partition(machine: Machine, free: int, gpus: int) -> tuple[int, int, int]:
    """Return the partition of GPUs into sets that has the highest total score of links.

    Args:
        machine: The node.
        free: The GPUs to divide completely, as a mask.
        gpus: The size of each set.

    Returns:
        The total score, the score of the best set, and the best set as a mask.
    """
    if not free:
        return 0, -1, 0
    first, *others = positions_of(free)
    best = (-1, -1, 0)
    for others_of_set in itertools.combinations(others, gpus - 1):
        own = mask_of((first, *others_of_set))
        score = _score(machine, own)
        total, top, chosen = _partition(machine, free ^ own, gpus)
        candidate = (total + score, score, own) if score >= top else (total + score, top, chosen)
        if candidate[0] > best[0]:
            best = candidate
    return best


@lru_cache(maxsize=65536)
def _score(machine: Machine, mask: int) -> int:
    direct = not machine.switched  # it does not know switches
    return sum(
        _PAIR[machine.paths[a][b]] + (100 * machine.links[a][b] if direct else 0)
        for a, b in itertools.combinations(positions_of(mask), 2)
    )


@lru_cache(maxsize=1024)
def _rungs(machine: Machine, gpus: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Return the GPU positions of each group of linked GPUs, each NUMA node, and all.

    A group has ``gpus`` GPUs. The positions are in the order in which the node publishes its devices.
    """
    groups = group(machine)
    by_group: dict[int, list[int]] = {}
    by_numa: dict[int, list[int]] = {}
    for place in groups.order:
        number = groups.by_size[gpus][place] if gpus in groups.by_size else None
        if number is not None:
            by_group.setdefault(number, []).append(place)
        numa = machine.gpus[place].numa
        if numa is not None:
            by_numa.setdefault(numa, []).append(place)
    return list(by_group.values()), list(by_numa.values()), [list(groups.order)]


def _first(cluster: Cluster, gpus: int) -> int | None:
    return next((node for node, mask in enumerate(cluster.free) if mask.bit_count() >= gpus), None)


def _part(cluster: Cluster, choice: Choice) -> Part:
    node = cluster.number[choice.node]
    place = {gpu.index: position for position, gpu in enumerate(cluster.machines[node].gpus)}
    return Part(node, sum(1 << place[index] for index in choice.gpus))
