"""Which GPUs belong together: NVLink domains, best disjoint groups of 2, 4 and 8, and a device order that shows them.

A scheduler can only match equal attribute values. So each GPU gets, for every size, the number of one group; groups of
a size are disjoint, and a claim whose GPUs all show the same number has a good set.

A set may be a group when a ring through all of it uses links or switches alone (for two GPUs: a link). Among the ways
to split a domain into groups the one wins that has, in this order,

1. the most groups;
2. the highest sum, over the groups, of the links that the least linked GPU has inside its group: the cap on what NCCL's
   rings together can carry (NCCL 2.27.7 on the DGX-1: {0,1,2,3} has 4 and reaches 80 GB/s, {0,3,4,7} has 3 and 60);
3. the highest sum of the rings' weakest steps, then of all links inside;
4. the nearest PCIe paths inside the groups;
5. the most groups that lie inside one group of the next size up, so that quads consist of pairs;
6. the lowest GPU numbers.

The first four are properties of the graph: numbering the GPUs otherwise cannot change what they yield.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations

import msgspec

from dradriver.topology.machine import Machine, PathType

SIZES = (2, 4, 8)
_EXACT = 16  # GPUs of one domain up to which all splits are compared

_Set = tuple[int, ...]  # GPU positions, ascending by GPU number
_Value = tuple[int, ...]  # compared left to right; values of disjoint sets add up
_NOTHING: _Value = (0, 0, 0, 0, 0)


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one machine; every tuple that is "per GPU" is by position in ``machine.gpus``.

    Attributes:
        domain: Per GPU: number of its NVLink domain (what links or one switch fabric connect), None without links.
        by_size: For 2, 4, 8, per GPU: number of its group of that size, or None.
        gbps: For 2, 4, 8, per group number: weakest step of the group's best ring, GB/s in one direction.
        order: All GPU positions, groups adjacent, GPUs outside the larger groups last.
    """

    domain: tuple[int | None, ...]
    by_size: dict[int, tuple[int | None, ...]]
    gbps: dict[int, tuple[float, ...]]
    order: tuple[int, ...]


def group(machine: Machine) -> Groups:
    """Return the groups of ``machine``; the same for any order of its GPUs, as long as they keep their numbers."""
    count = len(machine.gpus)
    ranked = sorted(range(count), key=lambda i: machine.gpus[i].index)
    domains = _components(ranked, lambda i, j: machine.links[i][j] > 0)
    linked = [d for d in domains if len(d) > 1]
    by_size: dict[int, tuple[int | None, ...]] = {}
    gbps: dict[int, tuple[float, ...]] = {}
    outer: list[_Set] = []
    for size in reversed(SIZES):
        found = [s for d in linked for s in _split(machine, d, size, outer=outer)]
        found.sort(key=lambda s: machine.gpus[s[0]].index)
        by_size[size] = _numbers(found, count)
        gbps[size] = tuple(round(_ring(machine, s) * machine.link_gbps, 3) for s in found)
        outer = found
    return Groups(
        domain=_numbers(linked, count),
        by_size={size: by_size[size] for size in SIZES},
        gbps={size: gbps[size] for size in SIZES},
        order=_order(machine, ranked, by_size=by_size),
    )


def _numbers(sets: Sequence[_Set], count: int) -> tuple[int | None, ...]:
    number = {i: n for n, members in enumerate(sets) for i in members}
    return tuple(number.get(i) for i in range(count))


def _components(ranked: Sequence[int], joined: Callable[[int, int], bool]) -> list[_Set]:
    """Return the connected components, each and all of them in the order of ``ranked``."""
    components, left = [], list(ranked)
    while left:
        reached, border = {left[0]}, [left[0]]
        while border:
            i = border.pop()
            new = [j for j in left if j not in reached and joined(i, j)]
            reached.update(new)
            border += new
        components.append(tuple(i for i in left if i in reached))
        left = [i for i in left if i not in reached]
    return components


def _split(machine: Machine, domain: _Set, size: int, *, outer: Collection[_Set]) -> list[_Set]:
    if len(domain) < size:
        return []
    if all(machine.gpus[i].switch_links for i in domain):
        return _split_switched(machine, domain, size)
    if len(domain) > _EXACT:
        return _split_greedy(machine, domain, size)
    within = [frozenset(o) for o in outer]
    values: dict[_Set, _Value] = {}
    for members in _rings(machine, domain, size):
        nested = any(o.issuperset(members) for o in within)
        values[members] = (*_value(machine, members), int(nested))
    return _best_split(domain, size, values)


def _split_switched(machine: Machine, domain: _Set, size: int) -> list[_Set]:
    """Split a switch fabric, where every set is a ring: alike GPUs of one NUMA node first, then what is left over."""
    alike: dict[tuple[int, int | None], list[int]] = {}
    for i in domain:
        alike.setdefault((-machine.gpus[i].switch_links, machine.gpus[i].numa), []).append(i)
    whole, rest = [], []
    for members in sorted(alike.values(), key=lambda m: -machine.gpus[m[0]].switch_links):
        cut = len(members) // size * size
        whole += members[:cut]
        rest += members[cut:]
    line = whole + rest
    return [
        tuple(sorted(line[n : n + size], key=lambda i: machine.gpus[i].index))
        for n in range(0, len(line) - size + 1, size)
    ]


def _ring(machine: Machine, members: _Set) -> int:
    """Return the links of the weakest step of the best ring through ``members`` (of 2, 4 or 8), 0 without a ring."""
    if all(machine.gpus[i].switch_links for i in members):
        return min(machine.links[i][j] for i, j in combinations(members, 2))
    counts = {machine.links[i][j] for i, j in combinations(members, 2)} - {0}
    for least in sorted(counts, reverse=True):
        if any(True for _ in _rings(machine, members, len(members), least=least)):
            return least
    return 0


def _value(machine: Machine, members: _Set) -> _Value:
    inside = [sum(machine.links[i][j] for j in members) for i in members]
    far = sum(machine.paths[i][j] for i, j in combinations(members, 2))
    return (min(inside), _ring(machine, members), sum(inside), -far)


def _rings(machine: Machine, domain: _Set, size: int, *, least: int = 1) -> Iterator[_Set]:
    """Yield every ``size``-subset of ``domain`` (16 at most) that has a ring of links of at least ``least`` each.

    ``ends[mask]`` holds, as bits, the GPUs at which a path over all of ``mask`` can end that starts at its lowest bit
    (Held and Karp 1962, with sets of ends in place of lengths).
    """
    near = [sum(1 << b for b, j in enumerate(domain) if i != j and machine.links[i][j] >= least) for i in domain]
    if size == 2:
        for a, b in combinations(range(len(domain)), 2):
            if near[a] >> b & 1:
                yield domain[a], domain[b]
        return
    ends = {1 << b: 1 << b for b in range(len(domain))}
    layer = list(ends)
    for _ in range(size - 1):
        grown: dict[int, int] = {}
        for mask in layer:
            for b in _bits(_above(mask, len(domain)) & ~mask):
                if ends[mask] & near[b]:
                    grown[mask | 1 << b] = grown.get(mask | 1 << b, 0) | 1 << b
        ends = grown
        layer = list(grown)
    for mask in layer:
        lowest = (mask & -mask).bit_length() - 1
        if ends[mask] & near[lowest]:
            yield tuple(domain[b] for b in _bits(mask))


def _above(mask: int, count: int) -> int:
    """Return all bits below ``count`` that are higher than the lowest one of ``mask``."""
    return ((1 << count) - 1) & -((mask & -mask) << 1)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _best_split(domain: _Set, size: int, values: dict[_Set, _Value]) -> list[_Set]:
    """Return the disjoint sets of ``values`` that are most in number, then highest in summed value, then lowest.

    A dynamic programme over bit masks of the GPUs not yet decided: the lowest one is in a group or in none.
    """
    place = {i: b for b, i in enumerate(domain)}
    by_lowest: dict[int, list[tuple[int, _Value, _Set]]] = {}
    for members in sorted(values, key=lambda s: [place[i] for i in s]):
        mask = sum(1 << place[i] for i in members)
        by_lowest.setdefault(place[members[0]], []).append((mask, values[members], members))
    memo: dict[tuple[int, int], tuple[_Value, list[_Set]] | None] = {}

    def best(mask: int, groups: int) -> tuple[_Value, list[_Set]] | None:
        if groups == 0:
            return _NOTHING, []
        if mask.bit_count() < groups * size:
            return None
        key = (mask, groups)
        if key not in memo:
            memo[key] = None
            lowest = (mask & -mask).bit_length() - 1
            found = None
            for taken, value, members in by_lowest.get(lowest, ()):
                rest = best(mask & ~taken, groups - 1) if taken & mask == taken else None
                if rest is not None:
                    total = tuple(a + b for a, b in zip(value, rest[0], strict=True))
                    if found is None or total > found[0]:
                        found = (total, [members, *rest[1]])
            without = best(mask & (mask - 1), groups)
            if without is not None and (found is None or without[0] > found[0]):
                found = without
            memo[key] = found
        return memo[key]

    for groups in range(len(domain) // size, 0, -1):
        result = best((1 << len(domain)) - 1, groups)
        if result is not None:
            return result[1]
    return []


def _split_greedy(machine: Machine, domain: _Set, size: int) -> list[_Set]:
    """Split a domain too large to compare all splits: grow each group from the lowest GPU left, by most links."""
    found: list[_Set] = []
    left = list(domain)
    while left:
        members = [left[0]]
        while len(members) < size:
            reach = {j: sum(machine.links[i][j] for i in members) for j in left if j not in members}
            top = max(reach, key=lambda j: (reach[j], -machine.gpus[j].index), default=None)
            if top is None or reach[top] == 0:
                break
            members.append(top)
        chosen = tuple(sorted(members, key=lambda i: machine.gpus[i].index))
        if len(members) == size and _ring(machine, chosen):
            found.append(chosen)
            left = [i for i in left if i not in members]
        else:
            left = left[1:]
    return found


def _order(machine: Machine, ranked: Sequence[int], *, by_size: dict[int, tuple[int | None, ...]]) -> tuple[int, ...]:
    """Sort by group of 8, of 4, of 2, then by nearness over PCIe; whoever has no group comes after those that have."""
    nearness: dict[int, list[int]] = {i: [] for i in ranked}
    for level in (PathType.NODE, PathType.PHB, PathType.PXB, PathType.PIX):
        for members in _components(ranked, _within(machine, level)):
            for i in members:
                nearness[i].append(machine.gpus[members[0]].index)

    def key(i: int) -> list[int]:
        numbers = [by_size[size][i] for size in reversed(SIZES)]
        last = len(ranked)  # above every group's number
        return [last if n is None else n for n in numbers] + nearness[i] + [machine.gpus[i].index]

    return tuple(sorted(ranked, key=key))


def _within(machine: Machine, level: PathType) -> Callable[[int, int], bool]:
    return lambda i, j: machine.paths[i][j] <= level
