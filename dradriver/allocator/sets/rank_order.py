"""Orders the GPUs of a set: the best ring, the order of ranks, and the split over containers.

``choice`` calls it. All functions take and return positions, as bit masks or as tuples, never GPU numbers.

A *step* is the connection between two GPUs that are neighbours in a ring or in an order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from dradriver.allocator.sets import tours
from dradriver.allocator.sets.masks import mask_of, positions_of
from dradriver.allocator.sets.subsets import Floats, Ints
from dradriver.allocator.sets.tables import Tables, remembered

_EXACT = 8  # up to here orders and splits are searched exhaustively


@remembered
def best_ring(tables: Tables, mask: int) -> tuple[int, ...]:
    """Return the order of a set's GPUs along the ring whose weakest step is best.

    The order starts at the lowest position. It is computed from the best paths of all smaller subsets (Held and Karp
    1962), which is exact up to 16 GPUs. Among equal rings, the result is the ring whose list of positions is lowest.
    ``mask`` is the bit mask of the set, ``tables`` has the rates between the GPUs.
    """
    members = np.array(positions_of(mask), dtype=np.int64)
    n = len(members)
    if n < 3:
        return tuple(members.tolist())
    pairs = np.ix_(members, members)
    usable = tables.step_rank[pairs] <= tables.weakest[mask]
    gain = np.where(usable, _step_worth(tables)[pairs].astype(np.float64), -np.inf)
    if (gain[_upper(n)] == gain[0, 1]).all():
        return tuple(members.tolist())
    return tuple(members[list(tours.exact(gain))].tolist())


@remembered
def rank_order(tables: Tables, mask: int) -> tuple[int, ...]:
    """Return the order of a set's GPUs by rank, in which aligned blocks of two, then of four, have the best links.

    Blocks are aligned if they begin at a multiple of their size, as tensor parallel groups do. The order is exact up to
    8 GPUs. A larger set is first cut into a block of 8 and the others, so that pairs, then blocks of four, keep the
    best links. GPUs that do not fill a block come last. Among equal orders the one nearest to PCI order wins. ``mask``
    is the bit mask of the set.
    """
    members = positions_of(mask)
    n = len(members)
    if n > _EXACT:
        block = _block_of_eight(tables, mask)
        return rank_order(tables, block) + rank_order(tables, mask ^ block)
    if n < 4:
        return _tail_order(tables, members)
    at = np.array(members, dtype=np.int64)

    # All sets of four, as indices into ``members``. A *way* splits all GPUs into such fours and a tail of up to three.
    quads, ways = _quads(n)

    # For each four GPUs, the order with the best two pairs. Among equals, the one whose pairs join best as a ring, then
    # the first. ``orders``: (quads, orders, 4), positions. ``pairs``: (quads, orders), GB/s of ranks 0-1 plus 2-3.
    orders = at[quads[:, _TURNS]]
    pairs = _pair_gbps(tables, orders)
    steps = _step_worth(tables)
    ring_worth = steps[orders[..., 1], orders[..., 2]] + steps[orders[..., 3], orders[..., 0]]
    best_pairs = pairs.max(axis=1)
    best_order = np.where(pairs == best_pairs[:, None], ring_worth, -np.inf).argmax(axis=1)

    # ``tables.busbw`` is the predicted bandwidth of a set by its mask.
    quad_gbps = tables.busbw[(1 << at[quads]).sum(axis=1)].astype(np.float64)
    tails = [_tail_order(tables, tuple(members[position] for position in tail)) for _, tail in ways] if n % 4 else [()]
    quads_of_ways = np.array([quad_numbers for quad_numbers, _ in ways])

    # The sum of the pairs of a way decides, then the bandwidth of its fours.
    value = best_pairs[quads_of_ways].sum(axis=1, dtype=np.float64)
    if n % 4 > 1:
        value += _pair_gbps(tables, np.array(tails))
    best_ways = np.flatnonzero(value == value.max())
    best_way = int(best_ways[quad_gbps[quads_of_ways[best_ways]].sum(axis=1).argmax()])
    blocks = [orders[quad, best_order[quad]].tolist() for quad in ways[best_way][0]]
    return (*itertools.chain.from_iterable(blocks), *tails[best_way if n % 4 else 0])


@remembered
def split(tables: Tables, mask: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the GPUs of each container as bit masks, in the containers' order.

    The fit of a container is its predicted bandwidth relative to the best set of that size on the machine. The best
    split gives the container with the lowest fit as much as possible; among equals, the sum of the fits decides. The
    search is exhaustive up to 8 GPUs. For larger sets the largest containers choose first.

    Args:
        tables: The figures of all sets of the machine's GPUs.
        mask: Bit mask of the set to split.
        counts: The number of GPUs of each container.
    """
    if len(counts) == 1:
        return (mask,)
    if mask.bit_count() > _EXACT:
        return _split_greedily(tables, mask, counts)
    best: tuple[float, float] | None = None
    chosen: tuple[int, ...] = ()
    for parts in _splits(mask, counts):
        worth = [_worth(tables, part) for part in parts]
        value = (round(min(worth), 4), round(sum(worth), 4))
        if best is None or value > best:
            best, chosen = value, parts
    return chosen


def _step_worth(tables: Tables) -> Floats:
    """Return the figure by which connections (steps) between two GPUs are compared.

    The shape is (g, g) for g GPUs. The figure is the step's rate. If bandwidths cannot be predicted, it is the strength
    of the pair's links (``strength.of_sets``), because links may have no known rate.
    """
    if tables.shape.predicted:
        return tables.step_gbps
    own = 1 << np.arange(tables.size)
    out: Floats = tables.busbw[own[:, None] | own]
    return out


# All orders of four.
_TURNS = np.array(list(itertools.permutations(range(4))))


@lru_cache(maxsize=16)
def _quads(n: int) -> tuple[Ints, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Return all sets of four of ``n`` GPUs, and all divisions into such sets.

    The search for the order of ranks compares these divisions. A division is the indices of its fours, and the tail:
    the GPUs that do not fill a four. Divisions that keep PCI order come first.
    """
    quads = list(itertools.combinations(range(n), 4))
    number: dict[tuple[int, ...], int] = {quad: at for at, quad in enumerate(quads)}
    ways: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for filled in itertools.combinations(range(n), n // 4 * 4):
        tail = tuple(at for at in range(n) if at not in filled)
        if n < 8:
            ways.append(((number[filled],), tail))
            continue
        for others in itertools.combinations(filled[1:], 3):
            first = (filled[0], *others)
            second = tuple(at for at in filled if at not in first)
            ways.append(((number[first], number[second]), tail))
    return np.array(quads, dtype=np.int64).reshape(-1, 4), ways


@lru_cache(maxsize=16)
def _upper(n: int) -> tuple[Ints, Ints]:
    return np.triu_indices(n, 1)


def _tail_order(tables: Tables, tail: tuple[int, ...]) -> tuple[int, ...]:
    if len(tail) < 3:
        return tail
    orders = np.array(list(itertools.permutations(tail)))
    return tuple(orders[_pair_gbps(tables, orders).argmax()].tolist())


def _pair_gbps(tables: Tables, orders: Ints) -> Floats:
    """Return for each order of GPUs the summed predicted bandwidth of its pairs.

    Pairs are ranks 0 and 1, 2 and 3, and so on. ``orders`` has the GPU positions by rank on its last axis.
    """
    even = orders.shape[-1] // 2 * 2
    pairs = 1 << orders[..., 0:even:2] | 1 << orders[..., 1:even:2]
    out: Floats = tables.busbw[pairs].sum(axis=-1)
    return out


def _block_of_eight(tables: Tables, mask: int) -> int:
    blocks = tables.members(_EXACT)
    blocks = blocks[blocks & ~mask == 0]
    _, _, _, fours, pairs = tables.still_offered
    rest = mask ^ blocks
    # lexsort's last key decides first, and it sorts ascending and stably
    keys = (-tables.busbw[blocks], -(fours[blocks] + fours[rest]), -(pairs[blocks] + pairs[rest]))
    return int(blocks[np.lexsort(keys)[0]])


def _splits(mask: int, counts: tuple[int, ...], done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield all ways to split a set of GPUs over containers, as bit masks, the lowest positions first.

    If ways differ only by a swap of equally large containers, only the first one is yielded.

    Args:
        mask: Bit mask of the GPUs that are not assigned yet.
        counts: The number of GPUs of each container.
        done: The bit masks of the first containers, which are assigned already.
    """
    if len(done) == len(counts):
        yield done
        return
    size = counts[len(done)]
    alike = [part & -part for part, count in zip(done, counts, strict=False) if count == size]
    for part in itertools.combinations(positions_of(mask), size):
        own = mask_of(part)
        if not alike or alike[-1] < own & -own:
            yield from _splits(mask ^ own, counts, (*done, own))


def _split_greedily(tables: Tables, mask: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    parts = [0] * len(counts)
    for container in sorted(range(len(counts)), key=lambda container: -counts[container]):
        options = tables.members(counts[container])
        options = options[options & ~mask == 0]
        rest = mask ^ options
        keys = (*(-row[rest] for row in reversed(tables.still_offered)), -tables.busbw[options])
        parts[container] = int(options[np.lexsort(keys)[0]])
        mask ^= parts[container]
    return tuple(parts)


def _worth(tables: Tables, part: int) -> float:
    best = float(tables.best(part.bit_count())[tables.everything])
    return float(tables.busbw[part]) / best if best > 0 else 1.0
