"""Which NICs go with a set of GPUs: different ones for different GPUs, as near as there are, every GPU with as many.

A problem of assignment: each request gets NICs that it may have, each of them goes to a GPU, and the sum of the ways is
least. Solved exactly, by shortest augmenting paths (Jonker and Volgenant, Computing 38, 1987), in rows^2 steps over all
columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

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
    return _assigned(np.where(costs >= NEVER, NEVER, costs * _TIE + np.arange(costs.shape[1])))


def _assigned(costs: Costs, begun: int = 0) -> tuple[int, ...] | None:
    """Return the same of costs that are ready; so many rows begin with the column of their number, which costs 0."""
    rows, columns = costs.shape
    if rows > columns:
        return None
    may_be = np.zeros((rows + 1, columns + 1), dtype=np.bool_)
    may_be[1:, 1:] = costs < NEVER
    wide = np.zeros((rows + 1, columns + 1), dtype=np.int64)
    wide[1:, 1:] = costs
    of_row, of_column = np.zeros(rows + 1, dtype=np.int64), np.zeros(columns + 1, dtype=np.int64)
    row_at, before = np.zeros(columns + 1, dtype=np.int64), np.zeros(columns + 1, dtype=np.int64)
    row_at[1 : begun + 1] = np.arange(1, begun + 1)
    far = np.iinfo(np.int64).max
    for row in range(begun + 1, rows + 1):
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


def dealt(
    costs: Costs, usable: Sequence[Collection[int]], counts: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """Return for each request its NICs, as pairs of GPU and NIC by GPU; None where there are not so many.

    Each GPU has as many as any other, or one less, of all requests together: which ones have less, and which request's
    NIC is for which GPU, is part of the choice.

    Every NIC is a row and a column: a request takes its column, and then its row has to take a part of a GPU, while the
    others' rows keep their columns.

    Args:
        costs: (GPUs, NICs), as in ``assign``.
        usable: The NICs that each request may have.
        counts: How many each is to have.
    """
    gpus, wanted = costs.shape[0], sum(counts)
    every, some = divmod(wanted, gpus)
    columns = _worth(costs, usable, wanted)
    own = costs[:, columns]
    if len(columns) < wanted or ((own < NEVER).sum(axis=1) < every).any():
        return None
    nics, parts = len(columns), list(range(gpus)) * (every + bool(some))
    without = gpus - some if some else 0  # parts that nobody takes: one each of so many GPUs
    if len(counts) == 1:  # whichever it is, the request's it is: parts of GPUs take NICs
        wide = np.full((len(parts), without + nics), NEVER, dtype=np.int64)
        wide[:, without:] = own[parts]
        wide[gpus * every :, :without] = 0  # the first columns: rather these than NICs that cost nothing
        found = assign(wide)
        if found is None:
            return None
        return (tuple(sorted((parts[at], columns[nic - without]) for at, nic in enumerate(found) if nic >= without)),)
    takers = np.repeat(range(len(counts)), counts)
    wide = np.full((nics + wanted + without, nics + len(parts)), NEVER, dtype=np.int64)
    np.fill_diagonal(wide[:nics, :nics], 0)
    wide[:nics, nics:] = np.where(own >= NEVER, NEVER, own * _TIE)[parts].T
    is_usable = np.array([[column in each for column in columns] for each in usable], dtype=np.bool_)
    wide[nics : nics + wanted, :nics] = np.where(is_usable, np.arange(nics), NEVER)[takers]
    wide[nics + wanted :, nics + gpus * every :] = 0
    found = _assigned(wide, begun=nics)
    if found is None:
        return None
    pairs = [(parts[found[column] - nics], columns[column]) for column in found[nics : nics + wanted]]
    ends = list(itertools.accumulate(counts))
    return tuple(tuple(sorted(pairs[end - count : end])) for end, count in zip(ends, counts, strict=True))


def _worth(costs: Costs, usable: Sequence[Collection[int]], wanted: int) -> list[int]:
    """Return those NICs that may be in the cheapest choice: of alike ones each GPU has others before them."""
    if len(usable) == 1:
        return sorted(usable[0])
    alike: dict[tuple[int, ...], list[int]] = {}
    for column in range(costs.shape[1]):
        if users := tuple(at for at, each in enumerate(usable) if column in each):
            alike.setdefault(users, []).append(column)
    out: set[int] = set()
    for columns in alike.values():
        own = costs[:, columns]
        for row, order in zip(own, own.argsort(axis=1, kind="stable")[:, :wanted], strict=True):
            out.update(columns[at] for at in order.tolist() if row[at] < NEVER)
    return sorted(out)


def near(machine: Machine) -> PathType | None:
    """Return how far a NIC may be from a GPU to be near it: below one PCIe switch, or as far as the machine's nearest.

    None where the machine has no NICs, or says only that none is on a GPU's NUMA node.
    """
    ways = [way for row in machine.nic_paths for way in row]
    return limit(ways)


def limit(ways: Sequence[PathType]) -> PathType | None:
    """Return how far a NIC may be from a GPU to be near it, by the paths of a machine's NICs and GPUs."""
    nearest = min(ways, default=PathType.SYS)
    return None if nearest >= PathType.SYS else max(nearest, PathType.PXB)


def near_gpus(machine: Machine) -> frozenset[int]:
    """Return the positions of the GPUs that have a NIC near them."""
    most = near(machine)
    if most is None:
        return frozenset()
    return frozenset(at for row in machine.nic_paths for at, way in enumerate(row) if way <= most)


def ways_from(machine: Machine, addresses: Sequence[str], root: str | None, numa: int | None) -> tuple[PathType, ...]:
    """Return the PCIe paths from each GPU, by position, to a NIC that another driver publishes.

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
