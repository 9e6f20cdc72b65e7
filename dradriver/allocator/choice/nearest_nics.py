"""Which NICs go with a set of GPUs: different ones for different GPUs, as near as there are, every GPU with as many.

A problem of assignment: rows are what each GPU is to have, columns are NICs, and the sum of the ways is least. Solved
exactly, by shortest augmenting paths (Jonker and Volgenant, Computing 38, 1987), in rows^2 steps over all columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dradriver.topology.machine import Machine, PathType
from dradriver.topology.paths import Place, pcie_path

Costs = NDArray[np.int64]

NEVER = 1 << 50
"""The cost of what may not be."""
_TIE = 1 << 20  # costs are multiplied by it, so that what is equal goes to the first columns


def assign(costs: Costs) -> tuple[int, ...] | None:
    """Return a column for each row, no column twice, with the least sum of costs; None where there is no such choice.

    Of equal sums one is taken by the columns' numbers, always the same.

    Args:
        costs: (rows, columns), each from 0 to 2**16, or ``NEVER``.
    """
    rows, columns = costs.shape
    if rows > columns:
        return None
    may_be = np.zeros((rows + 1, columns + 1), dtype=np.bool_)
    may_be[1:, 1:] = costs < NEVER
    wide = np.zeros((rows + 1, columns + 1), dtype=np.int64)
    wide[1:, 1:] = np.where(costs >= NEVER, NEVER, costs * _TIE + np.arange(columns))
    of_row, of_column = np.zeros(rows + 1, dtype=np.int64), np.zeros(columns + 1, dtype=np.int64)
    row_at, before = np.zeros(columns + 1, dtype=np.int64), np.zeros(columns + 1, dtype=np.int64)
    far = np.iinfo(np.int64).max
    for row in range(1, rows + 1):
        row_at[0], column = row, 0
        least, seen = np.full(columns + 1, far, dtype=np.int64), np.zeros(columns + 1, dtype=np.bool_)
        while True:
            seen[column] = True
            from_row = row_at[column]
            reduced = wide[from_row] - of_row[from_row] - of_column
            nearer = may_be[from_row] & ~seen & (reduced < least)
            least[nearer], before[nearer] = reduced[nearer], column
            open_ = np.where(seen, far, least)
            open_[0] = far
            nearest = int(open_.argmin())
            step = open_[nearest]
            if step == far:  # whatever those before it had instead, so nobody need look at the others
                return None
            of_row[row_at[seen]] += step
            of_column[seen] -= step
            least[~seen] = np.where(least[~seen] == far, far, least[~seen] - step)
            column = nearest
            if row_at[column] == 0:
                break
        while column:
            previous = int(before[column])
            row_at[column] = row_at[previous]
            column = previous
    chosen = [0] * rows
    for column in range(1, columns + 1):
        if row_at[column]:
            chosen[row_at[column] - 1] = column - 1
    return tuple(chosen)


def evenly(costs: Costs, nics: int) -> tuple[tuple[int, int], ...] | None:
    """Return so many NICs for all GPUs together as pairs of GPU and NIC, by GPU; None where there are not so many.

    Each GPU has as many as any other, or one less: which ones have less is part of the choice.

    Args:
        costs: (GPUs, NICs), as in ``assign``.
        nics: How many.
    """
    gpus, columns = costs.shape
    every, some = divmod(nics, gpus)
    if ((costs < NEVER).sum(axis=1) < every).any():
        return None
    rows = list(range(gpus)) * (every + bool(some))
    wide = costs[rows]
    if some:
        without = np.full((len(rows), gpus - some), NEVER, dtype=np.int64)
        without[gpus * every :] = 0  # only what is beyond the equal part may stay away
        wide = np.concatenate([wide, without], axis=1)
    chosen = assign(wide)
    if chosen is None:
        return None
    return tuple(sorted((rows[row], column) for row, column in enumerate(chosen) if column < columns))


def served(kinds: Mapping[frozenset[int], int], wants: Mapping[int, int]) -> list[int]:
    """Return those GPUs that can all have their NICs at the same time; the first ones rather than those after them.

    NICs that may go with the same GPUs are counted, not told apart: cards have dozens of virtual functions. What a GPU
    has is given to another where it can have others in its place, as flow is by an augmenting path.

    Args:
        kinds: How many NICs there are, by the GPUs that they may go with.
        wants: How many NICs a GPU is to have, by the GPU; in their order.
    """
    left, having = dict(kinds), {kind: dict.fromkeys(kind, 0) for kind in kinds}
    out: list[int] = []
    for gpu, each in wants.items():
        if sum(number for kind, number in kinds.items() if gpu in kind) < each:
            continue
        before = dict(left), {kind: dict(own) for kind, own in having.items()}
        wanted = each
        while wanted and (path := _path(gpu, left, having)):
            last = path[-1][1]
            taken = [(kind, other) for (_, kind), (other, _) in itertools.pairwise(path)]
            number = min(wanted, left[last], *(having[kind][other] for kind, other in taken))
            for to, kind in path:
                having[kind][to] += number
            for kind, other in taken:
                having[kind][other] -= number
            left[last] -= number
            wanted -= number
        if wanted:
            left, having = before
        else:
            out.append(gpu)
    return out


def _path(
    gpu: int, left: Mapping[frozenset[int], int], having: Mapping[frozenset[int], Mapping[int, int]]
) -> list[tuple[int, frozenset[int]]]:
    """Return who gets what kind of NIC, each that of the one after it and the last one that is left; empty for none."""
    ways: dict[int, list[tuple[int, frozenset[int]]]] = {gpu: []}
    open_ = [gpu]
    for to in open_:
        for kind in left:
            if to not in kind:
                continue
            way = [*ways[to], (to, kind)]
            if left[kind]:
                return way
            for other, number in having[kind].items():
                if number and other not in ways:
                    ways[other] = way
                    open_.append(other)
    return []


def near(machine: Machine) -> PathType | None:
    """Return how far a NIC may be from a GPU to be near it: below one PCIe switch, or as far as the machine's nearest.

    None where the machine has no NICs, or says only that none is on a GPU's NUMA node.
    """
    ways = [way for row in machine.nic_paths for way in row]
    return limit(ways)


def limit(ways: Sequence[PathType]) -> PathType | None:
    """Return the same of a machine whose NICs and GPUs are so far from each other."""
    nearest = min(ways, default=PathType.SYS)
    return None if nearest >= PathType.SYS else max(nearest, PathType.PXB)


def near_gpus(machine: Machine) -> frozenset[int]:
    """Return the positions of the GPUs that have a NIC near them."""
    most = near(machine)
    if most is None:
        return frozenset()
    return frozenset(at for row in machine.nic_paths for at, way in enumerate(row) if way <= most)


def ways_from(machine: Machine, addresses: Sequence[str], root: str | None, numa: int | None) -> tuple[PathType, ...]:
    """Return the way to each GPU, by position, from a NIC of which somebody else tells.

    Args:
        machine: The machine.
        addresses: The NIC's PCI address, and that of the physical function that it belongs to: the first that the
            machine knows is where it is.
        root: Its root complex (``pci0000:00``) for where the machine knows none of them; None where that is not said.
        numa: Its NUMA node; the same.
    """
    for address in addresses:
        for nic, row in zip(machine.nics, machine.nic_paths, strict=True):
            if nic.pci and nic.pci == address:
                return row
    place = Place(numa=numa, root=root)
    return tuple(pcie_path(place, Place(numa=gpu.numa, root=gpu.pcie_root)) for gpu in machine.gpus)
