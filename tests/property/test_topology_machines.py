from __future__ import annotations

import random
from itertools import combinations, pairwise, permutations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dradriver.topology import machine_codec, topo_m
from dradriver.topology.errors import TopologyError
from dradriver.topology.groups import SIZES, Groups, group
from dradriver.topology.machine import Machine
from dradriver.topology.profiles import profile_reader
from tests.strategies import machines


def whole(machine: Machine, members: tuple[int, ...]) -> bool:
    """Whether a switch fabric without a hole, and nothing else, joins these GPUs."""
    own = [gpu.switch_links for gpu in machine.gpus]
    return all(own[i] and own[j] and machine.links[i][j] == min(own[i], own[j]) for i, j in combinations(members, 2))


def compared(machine: Machine) -> bool:
    """Whether all splits are compared: not in a whole fabric, where every set of one size has a ring."""
    linked = [i for i, row in enumerate(machine.links) if any(row)]
    return not linked or not whole(machine, tuple(linked))


def shuffled(machine: Machine, order: list[int], *, renumber: bool) -> Machine:
    """The same GPUs at other positions; with ``renumber`` their numbers follow the new positions."""
    numbers = [gpu.index for gpu in machine.gpus]
    gpus = (
        msgspec.structs.replace(machine.gpus[i], index=numbers[n] if renumber else numbers[i])
        for n, i in enumerate(order)
    )
    return msgspec.structs.replace(
        machine,
        gpus=tuple(gpus),
        links=tuple(tuple(machine.links[i][j] for j in order) for i in order),
        paths=tuple(tuple(machine.paths[i][j] for j in order) for i in order),
        nic_paths=tuple(tuple(row[i] for i in order) for row in machine.nic_paths),
    )


def named(machine: Machine, groups: Groups) -> object:
    """The groups in terms of uuids, which do not depend on positions."""
    uuids = [gpu.uuid for gpu in machine.gpus]
    by_size = {size: dict(zip(uuids, groups.by_size[size], strict=True)) for size in SIZES}
    return (
        dict(zip(uuids, groups.domain, strict=True)),
        by_size,
        groups.gbps,
        [uuids[i] for i in groups.order],
    )


def worth(machine: Machine, groups: Groups) -> object:
    """What a split yields whatever the GPUs' numbers: sizes and, for each, links and paths of all groups in sum."""
    sums = {}
    for size in SIZES:
        least = inside = far = 0
        for number in range(len(groups.gbps[size])):
            members = [i for i, n in enumerate(groups.by_size[size]) if n == number]
            least += min(sum(machine.links[i][j] for j in members) for i in members)
            inside += sum(machine.links[i][j] for i in members for j in members)
            far += sum(machine.paths[i][j] for i, j in combinations(members, 2))
        sums[size] = (len(groups.gbps[size]), least, round(sum(groups.gbps[size]), 3), inside, far)
    return sums


@given(machines(mixed=True), st.randoms(use_true_random=False))
def test_the_order_in_which_gpus_are_read_changes_nothing(machine: Machine, rng: random.Random) -> None:
    order = rng.sample(range(len(machine.gpus)), len(machine.gpus))
    other = shuffled(machine, order, renumber=False)
    assert named(other, group(other)) == named(machine, group(machine))


@given(machines(mixed=True).filter(compared), st.randoms(use_true_random=False))
def test_other_numbers_change_nothing_but_names(machine: Machine, rng: random.Random) -> None:
    order = rng.sample(range(len(machine.gpus)), len(machine.gpus))
    other = shuffled(machine, order, renumber=True)
    assert worth(other, group(other)) == worth(machine, group(machine))


def best_ring(machine: Machine, members: tuple[int, ...]) -> int:
    """Brute force: weakest step of the best ring, over all orders of the members."""
    first, *rest = members
    if not rest[1:]:
        return machine.links[first][rest[0]]
    rings = ((first, *p, first) for p in permutations(rest))
    return max(min(machine.links[a][b] for a, b in pairwise(r)) for r in rings)


def value(machine: Machine, members: tuple[int, ...]) -> tuple[int, ...]:
    inside = [sum(machine.links[i][j] for j in members) for i in members]
    far = sum(machine.paths[i][j] for i, j in combinations(members, 2))
    return min(inside), best_ring(machine, members), sum(inside), -far


def splits(sets: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """All ways to choose disjoint sets."""
    if not sets:
        return [[]]
    first, *rest = sets
    apart = [s for s in rest if not set(s) & set(first)]
    return splits(rest) + [[first, *chosen] for chosen in splits(apart)]


def most_apart(sets: list[tuple[int, ...]]) -> int:
    """The largest number of disjoint sets."""
    if not sets:
        return 0
    first, *rest = sets
    apart = [s for s in rest if not set(s) & set(first)]
    if len(apart) == len(rest):
        return 1 + most_apart(rest)
    return max(most_apart(rest), 1 + most_apart(apart))


@given(machines(max_gpus=6, mixed=True).filter(compared))
def test_groups_are_the_best_of_all_splits(machine: Machine) -> None:
    groups = group(machine)
    for size in (2, 4):
        candidates = [s for s in combinations(range(len(machine.gpus)), size) if best_ring(machine, s)]
        best = max(
            (len(split), *(sum(v) for v in zip(*(value(machine, s) for s in split), strict=True)))
            for split in splits(candidates)
        )
        count = len(groups.gbps[size])
        found = [tuple(i for i, n in enumerate(groups.by_size[size]) if n == k) for k in range(count)]
        mine = (count, *(sum(v) for v in zip(*(value(machine, s) for s in found), strict=True)))
        assert mine == best
        rings = tuple(round(best_ring(machine, s) * machine.link_gbps, 3) for s in found)
        assert groups.gbps[size] == rings


@given(machines(max_gpus=7, mixed=True).filter(lambda m: m.switched))
def test_a_switched_machines_groups_have_the_rings_they_tell_of_and_are_the_most_there_can_be(machine: Machine) -> None:
    groups = group(machine)
    for size in (2, 4):
        found = [tuple(i for i, n in enumerate(groups.by_size[size]) if n == k) for k in range(len(groups.gbps[size]))]
        rings = tuple(round(best_ring(machine, s) * machine.link_gbps, 3) for s in found)
        assert groups.gbps[size] == rings
        assert all(rings)
        candidates = [s for s in combinations(range(len(machine.gpus)), size) if best_ring(machine, s)]
        assert len(found) == most_apart(candidates)


@given(machines(mixed=True))
def test_groups_are_disjoint_linked_and_complete(machine: Machine) -> None:
    groups = group(machine)
    assert sorted(groups.order) == list(range(len(machine.gpus)))
    assert group(machine) == groups
    for size in SIZES:
        for number, gbps in enumerate(groups.gbps[size]):
            members = [i for i, n in enumerate(groups.by_size[size]) if n == number]
            assert len(members) == size
            assert gbps > 0
            assert len({groups.domain[i] for i in members}) == 1


@given(machines(max_gpus=12, max_nics=10))
def test_json_is_the_identity(machine: Machine) -> None:
    assert machine_codec.decode(machine_codec.encode(machine)) == machine


@given(machines())
def test_topo_m_text_keeps_links_visible_paths_nics_and_numa(machine: Machine) -> None:
    again = topo_m.read(topo_m.write(machine), name=machine.name)
    assert again.links == machine.links
    assert [nic.name for nic in again.nics] == [nic.name for nic in machine.nics]
    assert again.nic_paths == machine.nic_paths
    assert [(g.index, g.numa) for g in again.gpus] == [(g.index, g.numa) for g in machine.gpus]
    for i, row in enumerate(machine.links):
        for j, count in enumerate(row):
            if not count:
                assert again.paths[i][j] == machine.paths[i][j]
            else:  # hidden: what is inferred is proved, so never nearer than the truth
                assert again.paths[i][j] >= machine.paths[i][j]


def damaged(text: str, data: st.DataObject) -> str:
    """The text with a few pieces cut out, doubled or replaced."""
    piece = st.text(st.sampled_from('\t\n -,:"[]{}0123456789XNVPISYGUC\x1bé\ud800'), max_size=6)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(piece | st.just(text[start:stop] * 2)) + text[stop:]
    return text


YAML = """\
name: box
product: {name: NVIDIA X, memory_mib: 1024}
link_gbps: 20
numa: [{id: 0, cpus: 0-7}]
gpus:
  - {pci: 0000:01:00.0, root: pci0000:00, switch: s0/a, numa: 0, minor: 3}
  - {pci: 0000:02:00.0, root: pci0000:00, switch: s0/b, numa: 0}
nics: [{name: mlx5_0, root: pci0000:00, switch: s0/a, numa: 0}]
links: {0-1: 4}
"""


@given(machines(max_gpus=4), st.data())
def test_no_damage_makes_a_reader_fail_otherwise_than_by_our_error(machine: Machine, data: st.DataObject) -> None:
    for text, read in (
        (machine_codec.encode(machine), machine_codec.decode),
        (topo_m.write(machine), topo_m.read),
        (YAML, lambda t: profile_reader.read(t, source="x.yaml")),
    ):
        try:
            result = read(damaged(text, data))
        except TopologyError as error:
            assert str(error)
        else:
            group(result)


@given(st.text() | st.binary())
def test_arbitrary_input_is_refused_by_our_error(text: str | bytes) -> None:
    for read in (
        machine_codec.decode,
        lambda t: topo_m.read(str(t)),
        lambda t: profile_reader.read(str(t), source="x"),
    ):
        try:
            read(text)
        except TopologyError:
            continue
        raise AssertionError("random input cannot be a machine")
