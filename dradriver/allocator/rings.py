"""In which order a set's GPUs should stand: the best ring, the ranks of a container, the split over containers.

All functions take and give positions, as bits of masks or as tuples, never GPU numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from dradriver.allocator import subsets
from dradriver.allocator.tables import Tables

_EXACT = 8  # up to here orders and splits are searched exhaustively


def positions(mask: int) -> tuple[int, ...]:
    """The mask's positions, ascending."""
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)


def mask_of(members: tuple[int, ...]) -> int:
    """The mask of some positions."""
    return sum(1 << position for position in members)


@lru_cache(maxsize=65536)
def best_ring(tables: Tables, mask: int) -> tuple[int, ...]:
    """The ring whose weakest step is best, then whose steps sum to most; it starts at the lowest position.

    Held and Karp (1962) over the set's masks, exact up to 16 GPUs; among equal rings the one that is lowest as a list.
    """
    members = np.array(positions(mask), dtype=np.int64)
    n = len(members)
    if n < 3:
        return tuple(members.tolist())
    usable = tables.step_rank[np.ix_(members, members)] <= tables.weakest[mask]
    np.fill_diagonal(usable, False)
    gain = np.where(usable, tables.step_gbps[np.ix_(members, members)].astype(np.float64), -np.inf)
    one = subsets.bits(n)
    visited = np.arange(1 << n)
    count = np.bitwise_count(visited)
    # remaining[visited, here]: most that the steps from here over all unvisited ones back to the start can sum to
    remaining = np.full((1 << n, n), -np.inf)
    remaining[-1] = gain[:, 0]
    for size in range(n - 1, 0, -1):
        masks = visited[(count == size) & (visited & 1 != 0)]
        open_to = (masks[:, None] & one) == 0
        onward = np.where(open_to, remaining[masks[:, None] | one, np.arange(n)], -np.inf)
        remaining[masks] = (gain[None, :, :] + onward[:, None, :]).max(axis=2)
    ring, seen, here = [0], 1, 0
    while len(ring) < n:
        worth = [
            -np.inf if seen >> there & 1 else gain[here, there] + remaining[seen | 1 << there, there]
            for there in range(n)
        ]
        here = int(np.argmax(worth))
        ring.append(here)
        seen |= 1 << here
    return tuple(members[ring].tolist())


@lru_cache(maxsize=65536)
def rank_order(tables: Tables, mask: int) -> tuple[int, ...]:
    """The order of ranks in which aligned blocks of 2, then of 4, have the best links (tensor parallel groups).

    Exact up to 8 GPUs; beyond, the set is first cut into a block of 8 and the rest so that pairs, then fours, lose
    least. What does not fill a block comes last. Among equal orders the one nearest to PCI order wins.
    """
    members = positions(mask)
    if len(members) > _EXACT:
        block = _block_of_eight(tables, mask)
        return rank_order(tables, block) + rank_order(tables, mask ^ block)
    best: tuple[float, float] | None = None
    order: tuple[int, ...] = members
    for quads, tail in _quads(members):
        ordered = [*(_quad_order(tables, quad) for quad in quads), _tail_order(tables, tail)]
        pairs = sum(_pair_gbps(tables, part) for part in ordered)
        value = (pairs, sum(float(tables.busbw[mask_of(quad)]) for quad in quads))
        if best is None or value > best:
            best, order = value, tuple(itertools.chain.from_iterable(ordered))
    return order


@lru_cache(maxsize=65536)
def split(tables: Tables, mask: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Each container's part of the set, as masks in the containers' order.

    The container that is worst off (predicted bandwidth against the best that so many GPUs of the machine can have)
    is as well off as possible, then all together. Exhaustive up to 8 GPUs; beyond, the largest containers choose first.
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


def _quads(members: tuple[int, ...]) -> list[tuple[list[tuple[int, ...]], tuple[int, ...]]]:
    """All ways to cut up to 8 positions into fours and a tail of fewer than four, PCI order first."""
    ways: list[tuple[list[tuple[int, ...]], tuple[int, ...]]] = []
    for rest in itertools.combinations(members, len(members) // 4 * 4):
        tail = tuple(position for position in members if position not in rest)
        if len(rest) < 8:
            ways.append(([rest] if rest else [], tail))
            continue
        for others in itertools.combinations(rest[1:], 3):
            first = (rest[0], *others)
            ways.append(([first, tuple(position for position in rest if position not in first)], tail))
    return ways


@lru_cache(maxsize=65536)
def _quad_order(tables: Tables, quad: tuple[int, ...]) -> tuple[int, ...]:
    """Two good pairs, turned so that they also join well as a ring."""

    def value(order: tuple[int, ...]) -> tuple[float, float]:
        a, b, c, d = order
        return _pair_gbps(tables, order), float(tables.step_gbps[b, c] + tables.step_gbps[d, a])

    return max(itertools.permutations(quad), key=value)


def _tail_order(tables: Tables, tail: tuple[int, ...]) -> tuple[int, ...]:
    return max(itertools.permutations(tail), key=lambda order: _pair_gbps(tables, order))


def _pair_gbps(tables: Tables, order: tuple[int, ...]) -> float:
    """Predicted bandwidth of the aligned pairs of an order, in sum."""
    pairs = zip(order[::2], order[1::2], strict=False)
    return sum(float(tables.busbw[1 << a | 1 << b]) for a, b in pairs)


def _block_of_eight(tables: Tables, mask: int) -> int:
    blocks = tables.members(_EXACT)
    blocks = blocks[blocks & ~mask == 0]
    _, _, _, fours, pairs = tables.keep
    rest = mask ^ blocks
    # lexsort's last key decides first, and it sorts ascending and stably
    keys = (-tables.busbw[blocks], -(fours[blocks] + fours[rest]), -(pairs[blocks] + pairs[rest]))
    return int(blocks[np.lexsort(keys)[0]])


def _splits(mask: int, counts: tuple[int, ...], done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """All ways to split, lowest positions first; of those that swap containers of one size only the first."""
    if len(done) == len(counts):
        yield done
        return
    size = counts[len(done)]
    alike = [part & -part for part, count in zip(done, counts, strict=False) if count == size]
    for part in itertools.combinations(positions(mask), size):
        own = mask_of(part)
        if not alike or alike[-1] < own & -own:
            yield from _splits(mask ^ own, counts, (*done, own))


def _split_greedily(tables: Tables, mask: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    parts = [0] * len(counts)
    for container in sorted(range(len(counts)), key=lambda container: -counts[container]):
        options = tables.members(counts[container])
        options = options[options & ~mask == 0]
        rest = mask ^ options
        keys = (*(-row[rest] for row in reversed(tables.keep)), -tables.busbw[options])
        parts[container] = int(options[np.lexsort(keys)[0]])
        mask ^= parts[container]
    return tuple(parts)


def _worth(tables: Tables, part: int) -> float:
    best = float(tables.best(frozenset())[part.bit_count(), tables.everything])
    return float(tables.busbw[part]) / best if best > 0 else 1.0
