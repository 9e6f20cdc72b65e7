"""What sets of GPUs are worth by every ring through them: written apart from the allocator, to hold it against.

The weakest step of the best ring decides (a direct link before PCIe, more links before fewer, a nearer path, a faster
one), then all links inside.
"""

from __future__ import annotations

import itertools
import random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology.machine import Machine, PathType

LEVELS: Final = {
    PathType.PIX: 1, PathType.PXB: 2, PathType.PHB: 2, PathType.NODE: 3, PathType.SYS: 4,
}  # fmt: skip
_AT_ONCE: Final = 1 << 24
_LARGEST: Final = 8  # sets of so many GPUs have 2,520 rings
_SOME: Final = 400  # free sets of each size, of machines with more GPUs
Step = tuple[int, int, float]
Values = NDArray[np.int64]


def step(machine: Machine, a: int, b: int) -> Step:
    """How good the step between two GPUs is, the larger the better: its level, its links, its rate."""
    if machine.links[a][b]:
        return 0, machine.links[a][b], 0.0
    rate = min(machine.gpus[a].pcie_gbps, machine.gpus[b].pcie_gbps)
    path = machine.paths[a][b]
    return -LEVELS[path], 0, min(rate, machine.socket_gbps) if path is PathType.SYS else rate


def worth(machine: Machine, gpus: int) -> tuple[Values, Values]:
    """Return all sets of so many GPUs, two or more, as masks, and what each is worth; a larger number is better."""
    places = range(len(machine.gpus))
    kinds = sorted({step(machine, a, b) for a, b in itertools.permutations(places, 2)})
    rank = np.array([[-1 if a == b else kinds.index(step(machine, a, b)) for b in places] for a in places])
    links = np.array(machine.links)
    sets = np.array(list(itertools.combinations(places, gpus)))
    # Every ring once: from the first of the set, and of the two ways round one.
    orders = [order for order in itertools.permutations(range(1, gpus)) if gpus < 4 or order[0] < order[-1]]
    rings = np.array([(0, *order) for order in orders])
    best = np.concatenate(
        [
            rank[some[:, rings], some[:, np.roll(rings, -1, axis=1)]].min(axis=2).max(axis=1)
            for some in np.array_split(sets, max(1, len(sets) * rings.size // _AT_ONCE))
        ]
    )
    inside = sum((links[sets[:, i], sets[:, j]] for i, j in itertools.combinations(range(gpus), 2)), start=0 * best)
    out: Values = best * (int(links.sum()) + 1) + inside
    masks: Values = (1 << sets).sum(axis=1)
    return masks, out


def weakest_is_a_link(machine: Machine, mask: int) -> bool:
    """Whether some ring over direct links alone goes through the whole set."""
    members = [place for place in range(len(machine.gpus)) if mask >> place & 1]
    first, *others = members
    return any(
        all(machine.links[a][b] for a, b in itertools.pairwise((first, *order, first)))
        for order in itertools.permutations(others)
    )


def compare(machine: Machine, *, largest: int = _LARGEST, some: int = _SOME) -> tuple[int, int, int]:
    """Ask for the best sets of up to ``largest`` GPUs.

    Of up to eight GPUs all free sets are tried, of more the whole machine and some drawn ones.

    Returns:
        How many sets were looked at, how many questions were asked, and how many answers were not the best.
    """
    tables, g = tables_of(machine), len(machine.gpus)
    drawn = random.Random(machine.name)  # the same in every run
    sets = asked = wrong = 0
    for gpus in range(2, min(g, largest) + 1):
        masks, own = worth(machine, gpus)
        sets += len(masks)
        value = np.full(1 << g, -1)
        value[masks] = own
        if g <= _LARGEST:
            frees = [free for free in range(1 << g) if free.bit_count() >= gpus]
        else:
            frees = [(1 << g) - 1, *(_free(drawn, g, gpus) for _ in range(some))]
        for free in frees:
            chosen = best_set(tables, free, gpus=gpus)
            best = int(value[masks[masks & ~free == 0]].max())
            asked += 1
            wrong += chosen is None or bool(chosen & ~free) or int(value[chosen]) != best
    return sets, asked, wrong


def _free(drawn: random.Random, g: int, gpus: int) -> int:
    return sum(1 << place for place in drawn.sample(range(g), drawn.randint(gpus, g)))
