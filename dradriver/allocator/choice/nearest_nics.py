"""Assigns the nearest NICs to the GPUs of a set, different NICs to different GPUs.

Every GPU gets the same number of NICs. This is an assignment problem: each request gets NICs that it may have, each NIC
goes to one GPU, and the sum of the distances is the least possible. The solution is exact (Jonker and Volgenant,
Computing 38, 1987). NICs are assigned one by one, and earlier assignments are exchanged along the cheapest path. With a
row for each needed NIC and a column for each NIC, it takes rows^2 steps, each over all columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from dradriver.topology.machine import Machine, PathType
from dradriver.topology.pcie_paths import Place, pcie_path

Costs = NDArray[np.int64]

NEVER = 1 << 50
"""The cost of what may not be."""
_TIE = 1 << 20  # costs are multiplied by it, so that what is equal goes to the first columns


def assign(costs: Costs) -> tuple[int, ...] | None:
    """Return a different column for each row, at the smallest sum of the costs.

    A row is a NIC that is needed, a column is a NIC that exists. The result is None if some row cannot get a column.
    Among equal sums the lowest column numbers win, so the answer is always the same.

    Args:
        costs: (rows, columns), each from 0 to 2**16, or ``NEVER`` if the row cannot have the column.
    """
    return _assigned(np.where(costs >= NEVER, NEVER, costs * _TIE + np.arange(costs.shape[1])))


def _assigned(costs: Costs, assigned_rows: int = 0) -> tuple[int, ...] | None:
    """Return the cheapest assignment of rows to different columns; None if there is none.

    The Hungarian algorithm (Kuhn and Munkres). Each row and column has a *potential*, a number that is subtracted from
    its costs. Row and column 0 stand for "not assigned yet".

    1. Begin at a row without a column. From the rows reached so far, go to the column that is nearest by *reduced cost*
       (cost minus both potentials, never negative).
    2. Raise the potentials so that this step costs 0, and go on from the row that has the column now.
    3. Stop at a column that no row has, and shift the columns along the path that led there.

    Args:
        costs: (rows, columns); ``NEVER`` if a row cannot have a column.
        assigned_rows: How many of the first rows are assigned at the start: row i has column i, at cost 0.
    """
    rows, columns = costs.shape
    if rows > columns:
        return None
    is_allowed = np.zeros((rows + 1, columns + 1), dtype=np.bool_)
    is_allowed[1:, 1:] = costs < NEVER
    padded_costs = np.zeros((rows + 1, columns + 1), dtype=np.int64)
    padded_costs[1:, 1:] = costs
    row_potential, column_potential = np.zeros(rows + 1, dtype=np.int64), np.zeros(columns + 1, dtype=np.int64)
    # ``previous_column[c]``: from the row of which column the search came to column c.
    row_of_column, previous_column = np.zeros(columns + 1, dtype=np.int64), np.zeros(columns + 1, dtype=np.int64)
    row_of_column[1 : assigned_rows + 1] = np.arange(1, assigned_rows + 1)
    unreached = np.iinfo(np.int64).max
    for row in range(assigned_rows + 1, rows + 1):
        row_of_column[0], column = row, 0

        # ``slack``: the least reduced cost at which a column can be reached from the rows seen so far.
        slack, is_seen = np.full(columns + 1, unreached, dtype=np.int64), np.zeros(columns + 1, dtype=np.bool_)
        # Grow the tree of alternating paths from this row, always to the nearest column, until a column is free.
        while True:
            is_seen[column] = True
            from_row = row_of_column[column]
            reduced = padded_costs[from_row] - row_potential[from_row] - column_potential
            is_nearer = is_allowed[from_row] & ~is_seen & (reduced < slack)
            slack[is_nearer], previous_column[is_nearer] = reduced[is_nearer], column
            cost_of_unseen = np.where(is_seen, unreached, slack)
            cost_of_unseen[0] = unreached
            nearest = int(cost_of_unseen.argmin())
            step = cost_of_unseen[nearest]
            # No column is left for this row, even if the rows before it took others.
            if step == unreached:
                return None
            # The potentials of what was seen change by the step: its reduced cost becomes 0, and none becomes negative.
            row_potential[row_of_column[is_seen]] += step
            column_potential[is_seen] -= step
            slack[~is_seen] = np.where(slack[~is_seen] == unreached, unreached, slack[~is_seen] - step)
            column = nearest
            is_free = row_of_column[column] == 0
            if is_free:
                break
        # Shift the columns along the path: each row on it takes the next row's column.
        while column:
            previous = int(previous_column[column])
            row_of_column[column] = row_of_column[previous]
            column = previous
    chosen = [0] * rows
    for column in range(1, columns + 1):
        if row_of_column[column]:
            chosen[row_of_column[column] - 1] = column - 1
    return tuple(chosen)


def dealt(
    costs: Costs, usable: Sequence[Collection[int]], counts: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """Return for each request its NICs, as pairs of GPU and NIC.

    A request here is one entry of a ResourceClaim that asks for NICs. The result is None if there are too few NICs. The
    sum of the distances between GPUs and NICs is the least possible. The NICs of all requests together are divided as
    evenly as possible. The search also chooses which GPUs get one NIC less, and which request's NIC is for which GPU.

    With several requests, one assignment problem (``assign``) decides which request gets a NIC and which GPU gets it.
    Each NIC has a column and a row in this problem. If a request takes the NIC's column, the request gets the NIC. Then
    the NIC's row takes a column that stands for a GPU, and this GPU gets the NIC. If no request takes the NIC's column,
    the NIC's own row takes it, and the NIC stays unused.

    Args:
        costs: (GPUs, NICs), how far each NIC is from each GPU; ``NEVER`` if it may not go to the GPU.
        usable: The NICs that each request may have.
        counts: The number of NICs that each request needs.
    """
    gpus, needed = costs.shape[0], sum(counts)
    each_gets, extra = divmod(needed, gpus)

    # Of many alike NICs only some can be in the best choice: the others are left out.
    candidates = _candidate_nics(costs, usable, needed)
    usable_costs = costs[:, candidates]
    if len(candidates) < needed or ((usable_costs < NEVER).sum(axis=1) < each_gets).any():
        return None

    # ``slots[s]`` is the GPU of slot s. Each GPU has a slot for each NIC that it can get: slot 0 of every GPU, then
    # slot 1 of every GPU, and so on. So many GPUs get one NIC less: their last slot stays empty.
    nics, slots = len(candidates), list(range(gpus)) * (each_gets + bool(extra))
    empty_slots = gpus - extra if extra else 0

    # With a single request it does not matter which NIC is whose: the slots of GPUs take NICs directly.
    if len(counts) == 1:
        assignment_costs = np.full((len(slots), empty_slots + nics), NEVER, dtype=np.int64)
        assignment_costs[:, empty_slots:] = usable_costs[slots]
        # "Empty" is in the first columns: they win over NICs that cost nothing, too.
        assignment_costs[gpus * each_gets :, :empty_slots] = 0
        columns_of_rows = assign(assignment_costs)
        if columns_of_rows is None:
            return None
        filled = [(slots[at], nic - empty_slots) for at, nic in enumerate(columns_of_rows) if nic >= empty_slots]
        return (tuple(sorted((gpu, candidates[nic]) for gpu, nic in filled)),)

    # Rows: the NICs, then one taker for each NIC that a request needs, then one filler for each empty slot.
    # Columns: the NICs, then the slots of GPUs. A NIC's row keeps its own column unless a taker takes it.
    request_of_taker = np.repeat(range(len(counts)), counts)
    assignment_costs = np.full((nics + needed + empty_slots, nics + len(slots)), NEVER, dtype=np.int64)
    np.fill_diagonal(assignment_costs[:nics, :nics], 0)

    # Distances weigh more than the numbers of NICs, which only decide between equal distances.
    assignment_costs[:nics, nics:] = np.where(usable_costs >= NEVER, NEVER, usable_costs * _TIE)[slots].T
    is_usable = np.array([[nic in nics_of_request for nic in candidates] for nics_of_request in usable], dtype=np.bool_)
    assignment_costs[nics : nics + needed, :nics] = np.where(is_usable, np.arange(nics), NEVER)[request_of_taker]
    assignment_costs[nics + needed :, nics + gpus * each_gets :] = 0
    columns_of_rows = _assigned(assignment_costs, assigned_rows=nics)
    if columns_of_rows is None:
        return None

    # A taker has a NIC's column, and that NIC's row has a slot: the slot's GPU gets the NIC.
    pairs = [(slots[columns_of_rows[nic] - nics], candidates[nic]) for nic in columns_of_rows[nics : nics + needed]]
    ends = list(itertools.accumulate(counts))
    return tuple(tuple(sorted(pairs[end - count : end])) for end, count in zip(ends, counts, strict=True))


def _candidate_nics(costs: Costs, usable: Sequence[Collection[int]], wanted: int) -> list[int]:
    """Return the NICs that can be in the assignment with the smallest sum of distances.

    With one request, these are all NICs that it may have. With several requests, the NICs that the same requests may
    have form a group. From each group, each GPU's ``wanted`` nearest NICs are returned.

    Args:
        costs: (GPUs, NICs), how far each NIC is from each GPU; ``NEVER`` if it may not go to the GPU.
        usable: The NICs that each request may have.
        wanted: The number of NICs that all requests together need.
    """
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
    """Return the longest PCIe path at which a NIC still counts as near to a GPU of the machine.

    The path is normally ``PXB``: only PCIe switches are between GPU and NIC. If no NIC of the machine is that near, the
    result is the shortest path between a NIC and a GPU. The result is None if the machine has no NICs, or if the
    shortest path is ``SYS``: then no NIC is on a GPU's NUMA node.
    """
    ways = [way for row in machine.nic_paths for way in row]
    return limit(ways)


def limit(ways: Sequence[PathType]) -> PathType | None:
    """Return the longest PCIe path at which a NIC still counts as near to a GPU.

    ``ways`` are the paths between the machine's NICs and GPUs. The result is ``PXB``, or the shortest path if none of
    the NICs is that near. It is None if there are no paths, or if the shortest one is ``SYS``.
    """
    nearest = min(ways, default=PathType.SYS)
    return None if nearest >= PathType.SYS else max(nearest, PathType.PXB)


def near_gpus(machine: Machine) -> frozenset[int]:
    """Return the positions of the GPUs that have a NIC near them.

    ``near`` says which PCIe paths are near. The position of a GPU is its index in ``Machine.gpus``.
    """
    most = near(machine)
    if most is None:
        return frozenset()
    return frozenset(at for row in machine.nic_paths for at, way in enumerate(row) if way <= most)


def ways_from(machine: Machine, addresses: Sequence[str], root: str | None, numa: int | None) -> tuple[PathType, ...]:
    """Return the PCIe paths from each GPU, by position, to a NIC that another driver publishes.

    Args:
        machine: The machine.
        addresses: The NIC's PCI address, and the address of its physical function. The first of them that a NIC of the
            machine has is used: the paths are those of this NIC.
        root: The NIC's root complex (``pci0000:00``), used if the machine knows none of the addresses; None if unknown.
        numa: The NIC's NUMA node, used in the same case; None if unknown.
    """
    for address in addresses:
        for nic, row in zip(machine.nics, machine.nic_paths, strict=True):
            if nic.pci and nic.pci == address:
                return row
    place = Place(numa=numa, root=root)
    return tuple(pcie_path(place, Place(numa=gpu.numa, root=gpu.pcie_root)) for gpu in machine.gpus)
