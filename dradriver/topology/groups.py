"""The groups of well linked GPUs: NVLink domains, best disjoint groups of 2, 4 and 8, and a matching device order.

The DRA scheduler can only require that attributes of devices are equal. So each GPU gets, for every group size, the
number of one group. The groups of a size are disjoint. A claim whose GPUs all have the same number has a good set.

GPUs can be a group if a ring through all of them uses only links or switches (for two GPUs: a link). If switches join
all GPUs of a domain, every set has a ring of this kind, and the GPUs of one NUMA node are grouped together. A domain
with switches is treated like one with direct links if a pair of its GPUs has no links (peer-to-peer access fails), or
more links than the switches give. There are many ways to split directly linked GPUs into groups. The best way has, in
this order,

1. the most groups;
2. the most links of the weakest GPUs, summed over all groups. The weakest GPU of a group has the fewest links inside
   the group. These links limit what NCCL's rings together can carry (NCCL 2.27.7 on the DGX-1: {0,1,2,3} has 4 and
   reaches 80 GB/s, {0,3,4,7} has 3 and 60);
3. the highest sum of the links of each ring's weakest step (the two neighbours with the fewest links), then of all
   links inside the groups;
4. the nearest PCIe paths inside the groups;
5. the most groups that lie inside one group of the next larger size, so that groups of four consist of pairs;
6. the lowest GPU numbers.

The first four criteria do not depend on the numbers of the GPUs.

An NVLink domain is all GPUs that links or one switch fabric connect. A step of a ring is a pair of neighbours in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import combinations

import msgspec

from dradriver.topology.link_rates import line_rate_gbps
from dradriver.topology.link_rings import Rings
from dradriver.topology.machine import Gpu, Machine, PathType

SIZES = (2, 4, 8)
_EXACT = 16  # GPUs of one domain up to which all splits are compared

_Set = tuple[int, ...]  # GPU positions, ascending by GPU number
_KEPT = 64  # machines whose groups are kept: the splits of a graph of 16 GPUs take 30 ms
_PART = 24  # bits for one part of a packed value; the largest, links of 8 groups of 8 x 7 x 1024, needs 19


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one machine. Every tuple "per GPU" is by position in ``machine.gpus``.

    Attributes:
        domain: Per GPU: number of its NVLink domain (GPUs that links or one switch fabric connect), None without links.
        by_size: For the sizes 2, 4 and 8, per GPU: number of its group of that size, or None.
        gbps: For the sizes 2, 4 and 8, per group number: the bandwidth of the weakest step of the group's best ring as
            NCCL counts it, GB/s in one direction.
        line_gbps: The bandwidth of the same step by the maker's data sheet (line rate), whole GB/s.
        any_gbps: For the sizes 2, 4 and 8, per group number: the lowest line rate between any two GPUs of the group; 0
            if two have no link. Any GPUs of the group have a ring of at least this rate.
        order: All GPU positions, sorted so that the GPUs of a group are adjacent. GPUs outside the larger groups are
            last.
    """

    domain: tuple[int | None, ...]
    by_size: dict[int, tuple[int | None, ...]]
    gbps: dict[int, tuple[float, ...]]
    line_gbps: dict[int, tuple[int, ...]]
    any_gbps: dict[int, tuple[int, ...]]
    order: tuple[int, ...]


def group(machine: Machine) -> Groups:
    """Return the groups of well linked GPUs of a machine; groups of one size are disjoint.

    The order in which the machine lists its GPUs does not change the groups; their numbers can.
    """
    gpus = (
        Gpu(index=gpu.index, uuid="", minor=0, pci="", numa=gpu.numa, switch_links=gpu.switch_links)
        for gpu in machine.gpus
    )
    return _group(
        Machine(name="", gpus=tuple(gpus), links=machine.links, paths=machine.paths, link_gbps=machine.link_gbps)
    )


def unlinked(machine: Machine, positions: Collection[int]) -> Machine:
    """Return the machine without the links of some GPUs, which are then in no group.

    ``positions`` are the GPUs that no pod may use (``peer_access``).
    """
    if not positions:
        return machine
    links = tuple(
        tuple(0 if i in positions or j in positions else count for j, count in enumerate(row))
        for i, row in enumerate(machine.links)
    )
    return msgspec.structs.replace(machine, links=links)


@functools.lru_cache(maxsize=_KEPT)
def _group(machine: Machine) -> Groups:
    """Return the groups of well linked GPUs of a machine; the result is cached.

    The caller has emptied all fields of ``machine`` that do not change the groups, so that equal servers share one
    result. Groups of eight are made first; smaller groups lie within larger ones if possible. GPUs behind NVLink
    switches all reach each other equally well, so they are split by NUMA node. Other linked GPUs are split so that the
    groups have the best rings.
    """
    count = len(machine.gpus)
    by_index = sorted(range(count), key=lambda i: machine.gpus[i].index)  # positions, by GPU number

    # A domain is a connected part of the graph of links; a fabric is a domain behind switches.
    domains = _components(by_index, lambda i, j: machine.links[i][j] > 0)
    linked = [domain for domain in domains if len(domain) > 1]
    fabrics = {domain for domain in linked if _through_switches(machine, domain)}
    by_size: dict[int, tuple[int | None, ...]] = {}  # by size: for each GPU, the number of its set; None for no set

    # By size and set: links of the weakest step of its best ring, and the fewest between any two of its GPUs.
    ring_links: dict[int, list[int]] = {}
    fewest_links: dict[int, list[int]] = {}
    larger_sets: list[_Set] = []
    for size in reversed(SIZES):
        sets = [
            gpu_set
            for domain in linked
            for gpu_set in (
                _split_fabric(machine, domain, size)
                if domain in fabrics
                else _split(machine, domain, size, outer=larger_sets)
            )
        ]
        # The number of a set is its place in this order.
        sets.sort(key=lambda gpu_set: machine.gpus[gpu_set[0]].index)
        by_size[size] = _group_of_gpu(sets, count)
        ring_links[size] = [_ring_links(machine, gpu_set) for gpu_set in sets]
        fewest_links[size] = [min(machine.links[i][j] for i, j in combinations(gpu_set, 2)) for gpu_set in sets]
        larger_sets = sets
    return Groups(
        domain=_group_of_gpu(linked, count),
        by_size={size: by_size[size] for size in SIZES},
        gbps={size: tuple(round(links * machine.link_gbps, 3) for links in ring_links[size]) for size in SIZES},
        line_gbps={size: _line_rates(machine, ring_links[size]) for size in SIZES},
        any_gbps={size: _line_rates(machine, fewest_links[size]) for size in SIZES},
        order=_order(machine, by_index, by_size=by_size),
    )


def _line_rates(machine: Machine, links: Iterable[int]) -> tuple[int, ...]:
    return tuple(line_rate_gbps(count, machine.link_gbps) for count in links)


def _group_of_gpu(sets: Sequence[_Set], count: int) -> tuple[int | None, ...]:
    number = {i: n for n, members in enumerate(sets) for i in members}
    return tuple(number.get(i) for i in range(count))


def _components(ranked: Sequence[int], joined: Callable[[int, int], bool]) -> list[_Set]:
    """Return the connected components: the sets of GPUs that ``joined`` connects, directly or through others.

    ``ranked`` are the GPUs in a fixed order. The GPUs of each component, and the components, are in this order.
    """
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
    if len(domain) > _EXACT:
        return _split_greedy(machine, domain, size)
    within = [sum(1 << domain.index(i) for i in o) for o in outer if set(o) <= set(domain)]
    values: dict[int, int] = {}
    for places, value in Rings(machine, domain).sets(size):
        mask = sum(1 << b for b in places)
        values[mask] = _packed((*value, int(any(o & mask == mask for o in within))))
    return [tuple(domain[b] for b in places) for places in _best_split(len(domain), size, values)]


def _through_switches(machine: Machine, members: _Set) -> bool:
    """Return whether switches join all ``members``, so that all rings through them are equally good.

    The result is True if every pair has exactly the links that the switches give it.
    """
    own = [(machine.gpus[i].switch_links, i) for i in members]
    own.sort()  # the lesser linked GPU of a pair comes first
    return own[0][0] > 0 and all(
        machine.links[i][j] == least for n, (least, i) in enumerate(own) for _, j in own[n + 1 :]
    )


def _packed(value: Iterable[int]) -> int:
    """Return one number for a tuple, so that tuples can be compared and added fast.

    The numbers of two tuples compare in the same way as the tuples. Their sum is the number of the tuple that has the
    sums of the items.
    """
    packed = 0
    for part in value:
        packed = (packed << _PART) + part
    return packed


def _split_fabric(machine: Machine, domain: _Set, size: int) -> list[_Set]:
    """Split ``domain``, the GPUs that one switch fabric joins, into sets of one size.

    Switches join all these GPUs, so every set has a ring. Sets within one NUMA node are preferred:

    1. All GPUs are put into one sequence. First come blocks of eight GPUs of one NUMA node with equally many links.
       Then come blocks of four, of two, and single GPUs.
    2. The sequence is cut into sets of ``size`` GPUs. GPUs that remain at its end are in no set.

    The sequence is the same for every size, so each group of four consists of two pairs.
    """
    alike: dict[tuple[int, int | None], list[int]] = {}
    for i in domain:
        alike.setdefault((-machine.gpus[i].switch_links, machine.gpus[i].numa), []).append(i)
    buckets = sorted(alike.values(), key=lambda members: -machine.gpus[members[0]].switch_links)
    line: list[int] = []
    for whole in (*reversed(SIZES), 1):
        for members in buckets:
            cut = len(members) // whole * whole
            line += members[:cut]
            del members[:cut]
    return [
        tuple(sorted(line[n : n + size], key=lambda i: machine.gpus[i].index))
        for n in range(0, len(line) - size + 1, size)
    ]


def _ring_links(machine: Machine, members: _Set) -> int:
    """Return the links of the weakest step of the best ring through ``members`` (2, 4 or 8 GPUs).

    The weakest step is the pair of neighbours in the ring with the fewest links. The result is 0 without a ring.
    """
    if _through_switches(machine, members):
        return min(machine.gpus[i].switch_links for i in members)
    return Rings(machine, members).weakest(range(len(members)))


def _best_split(count: int, size: int, values: dict[int, int]) -> list[_Set]:
    """Return disjoint sets of GPUs: as many as possible, with the highest summed value.

    If several splits are equally good, the split with the lowest GPUs is returned. The function first looks for the
    largest possible number of sets, then for one set less, and so on. It ends at the first number that is possible.
    Each search is a dynamic program over the bit mask of the GPUs that are not decided yet. Its step puts the lowest of
    these GPUs into a set, or into none.

    Args:
        count: Number of GPUs, the bits of a mask.
        size: GPUs of a set.
        values: The value of each set that may be chosen, by the bit mask of its GPUs.
    """
    memo: dict[tuple[int, int], tuple[int, list[_Set]] | None] = {}

    # The best summed value of exactly ``groups`` groups of GPUs of ``mask``, and these groups; None if not possible.
    def best(mask: int, groups: int) -> tuple[int, list[_Set]] | None:
        if groups == 0:
            return 0, []
        if mask.bit_count() < groups * size:
            return None
        key = (mask, groups)
        if key not in memo:
            split = None
            # Either the lowest GPU is in a group with some others, ...
            first, *others = _bits(mask)
            for others_in_group in combinations(others, size - 1):
                group_mask = 1 << first
                for other in others_in_group:
                    group_mask |= 1 << other
                best_after = best(mask ^ group_mask, groups - 1) if group_mask in values else None
                if best_after is not None:
                    value_after, groups_after = best_after
                    value = values[group_mask] + value_after
                    if split is None or value > split[0]:
                        split = value, [(first, *others_in_group), *groups_after]
            # ... or it is in no group.
            best_without = best(mask ^ 1 << first, groups)
            if best_without is not None and (split is None or best_without[0] > split[0]):
                split = best_without
            memo[key] = split
        return memo[key]

    for groups in range(count // size, 0, -1):
        result = best((1 << count) - 1, groups)
        if result is not None:
            _, split = result
            return split
    return []


def _bits(mask: int) -> list[int]:
    return [b for b in range(mask.bit_length()) if mask >> b & 1]


def _split_greedy(machine: Machine, domain: _Set, size: int) -> list[_Set]:
    """Split a domain into groups of ``size`` GPUs without comparing all possible splits.

    This is for domains that have too many possible splits. Each group begins with the lowest remaining GPU. Then the
    GPU with the most links to the group is added, until the group is complete.
    """
    sets: list[_Set] = []
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
        if len(members) == size and _ring_links(machine, chosen):
            sets.append(chosen)
            left = [i for i in left if i not in members]
        else:
            left = left[1:]
    return sets


def _order(machine: Machine, ranked: Sequence[int], *, by_size: dict[int, tuple[int | None, ...]]) -> tuple[int, ...]:
    """Sort GPUs so that groups of 8, of 4 and of 2 are adjacent.

    Within a group, GPUs that are near over PCIe are next to each other. GPUs without a group come last. ``by_size`` is
    the group of each GPU, for each size. ``ranked`` are all GPUs. Among GPUs that are equally near, the one with the
    lowest number comes first.
    """
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
