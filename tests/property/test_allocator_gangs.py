"""Gangs on small clusters, against a search through every way to place them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_placement import place_gang
from dradriver.allocator.gang_request import GangChoice, GangRequest, Role
from dradriver.allocator.request import Choice, NoPlaceError, Whole
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology.machine import PathType
from dradriver.topology.network_levels import location
from tests.effort import examples
from tests.fakes import machines

FOUR = machines.build(
    "four-pairs",
    paths=machines.nested(((0, 0, 1, 1),), (PathType.PHB,), across=PathType.SYS),
    links={(0, 1): 4, (2, 3): 2},
    numa=(0, 0, 1, 1),
    capability="8.0",
)
LEVELS = ("node", "leaf", "spine", "zone")
SOME = settings(deadline=None, max_examples=examples(150))
CPUS = 4  # of a node at most

Key = tuple[float, ...]


@st.composite
def clusters(draw: st.DrawFn, *, most: int = 5) -> tuple[Fleet, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    """Nodes of four GPUs on leaves of spines of a zone, and how many CPUs each has free."""
    fleet, cpus = Fleet(), []
    for number in range(draw(st.integers(1, most))):
        name = f"n{number}"
        fleet.set_node(name, FOUR, draw(st.sets(st.integers(0, 3), min_size=1)), row=number)
        spine, leaf = draw(st.sampled_from("xy")), draw(st.sampled_from("12"))
        fleet.set_location(name, location(zone="z", spine=spine, leaf=leaf))
        cpus.append([draw(st.integers(0, CPUS))])
    return fleet, np.array(cpus, dtype=np.int64)


def domain(fleet: Fleet, name: str, level: str) -> tuple[str, ...]:
    here = fleet.location(name)
    return (name,) if level == "node" else here.domains[LEVELS.index(level)] or ()


def reach(fleet: Fleet, names: list[str]) -> int:
    return next(at for at, level in enumerate(LEVELS) if len({domain(fleet, name, level) for name in names}) == 1)


def ways(free: tuple[int, ...], size: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every choice of disjoint sets, as masks."""
    if not count:
        yield ()
        return
    for part in itertools.combinations(free, size):
        rest = tuple(gpu for gpu in free if gpu > part[0] and gpu not in part)
        for others in ways(rest, size, count - 1):
            yield (sum(1 << gpu for gpu in part), *others)


def slowest(way: tuple[int, ...]) -> float:
    return min(float(tables_of(FOUR).busbw[mask]) for mask in way)


def key_of(fleet: Fleet, chosen: dict[str, tuple[int, ...]]) -> Key:
    """What decides, of one way to place a gang of equal pods: lower is better."""
    names = list(chosen)
    width = reach(fleet, names)
    equal = len({len(way) for way in chosen.values()}) == 1
    rails = equal and len({sum(way) for way in chosen.values()}) == 1
    inner = LEVELS[width - 1] if width else "node"
    pieces = Counter(domain(fleet, name, inner) for name in names)
    return (
        width, len(names), -min(map(slowest, chosen.values())), not equal, not rails,
        len(pieces), -min(pieces.values()),
    )  # fmt: skip


def every_way(fleet: Fleet, request: GangRequest, cpus: np.ndarray[tuple[int, int], np.dtype[np.int64]]
              ) -> Iterator[dict[str, tuple[int, ...]]]:  # fmt: skip
    names, size = sorted(fleet.nodes), request.pod.gpus
    need = request.needs[0]
    by_node = [
        [way for count in range(request.pods + 1) if not count or count * need <= cpus[at, 0] or not need
         for way in ways(tuple(sorted(fleet.free(name))), size, count)]
        for at, name in enumerate(names)
    ]  # fmt: skip
    for combined in itertools.product(*by_node):
        if sum(map(len, combined)) != request.pods:
            continue
        used = {name: way for name, way in zip(names, combined, strict=True) if way}
        if request.max_nodes is not None and len(used) > request.max_nodes:
            continue
        if any(len(way) * size < request.min_gpus_per_node for way in used.values()):
            continue
        if request.near_required and reach(fleet, list(used)) > LEVELS.index(request.near):
            continue
        yield used


def placed(choice: GangChoice) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    for pod in choice.pods:
        out[pod.node] = (*out.get(pod.node, ()), sum(1 << gpu for gpu in pod.gpus))
    return out


@SOME
@given(clusters(), st.data())
def test_equal_pods_are_placed_as_well_as_can_be(
    cluster: tuple[Fleet, np.ndarray[tuple[int, int], np.dtype[np.int64]]], data: st.DataObject
) -> None:
    fleet, cpus = cluster
    near = data.draw(st.sampled_from(("", "leaf", "spine")))
    request = GangRequest(
        pod=Whole(containers=(data.draw(st.sampled_from((1, 2, 2, 3, 4))),)),
        pods=data.draw(st.integers(1, 5)),
        needs=(data.draw(st.integers(0, 2)),),
        max_nodes=data.draw(st.sampled_from((None, None, 2, 3))),
        min_gpus_per_node=data.draw(st.sampled_from((0, 0, 2))),
        near=near,
        near_required=bool(near) and data.draw(st.booleans()),
    )
    best = min((key_of(fleet, way) for way in every_way(fleet, request, cpus)), default=None)
    if best is None:
        with pytest.raises(NoPlaceError):
            place_gang(fleet, request, amounts=cpus)
        return
    choice = place_gang(fleet, request, amounts=cpus)
    assert choice == place_gang(fleet, request, amounts=cpus)
    assert choice.reach == LEVELS[int(best[0])]
    assert key_of(fleet, placed(choice)) == pytest.approx(best, abs=0.01)
    neighbours_are_together(fleet, choice)


@pytest.mark.slow
@SOME
@given(st.data())
def test_of_many_domains_the_best_is_taken(data: st.DataObject) -> None:
    fleet, free = Fleet(), ([0, 1], [2, 3], [0, 1, 2], [1, 2, 3], [0, 2], [0, 2, 3])  # room for one pod each
    for number in range(data.draw(st.integers(6, 10))):
        fleet.set_node(f"n{number}", FOUR, data.draw(st.sampled_from(free)))
        spine, leaf = data.draw(st.sampled_from("xyw")), data.draw(st.sampled_from("123"))
        fleet.set_location(f"n{number}", location(zone="z", spine=spine, leaf=leaf))
    request = GangRequest(
        pod=Whole(containers=(data.draw(st.sampled_from((2, 3))),)), pods=data.draw(st.integers(2, 4))
    )
    sets = {name: list(ways(tuple(sorted(fleet.free(name))), request.pod.gpus, 1)) for name in fleet.nodes}
    some = sorted(name for name, own in sets.items() if own)
    keys = []
    for names in itertools.combinations(some, request.pods):
        fastest = min(max(map(slowest, sets[name])) for name in names)
        fast = [{way for way in sets[name] if slowest(way) >= fastest - 0.01} for name in names]
        same = sorted(set.intersection(*fast))
        keys.append(key_of(fleet, {name: same[0] if same else min(own) for name, own in zip(names, fast, strict=True)}))
    if keys:
        assert key_of(fleet, placed(place_gang(fleet, request))) == pytest.approx(min(keys), abs=0.01)


def neighbours_are_together(fleet: Fleet, choice: GangChoice) -> None:
    """Going through the indices each domain of every level is entered once."""
    for level in LEVELS:
        runs = [own for own, _ in itertools.groupby(domain(fleet, pod.node, level) for pod in choice.pods)]
        assert len(runs) == len(set(runs)), level


def sound(
    fleet: Fleet,
    cpus: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    request: GangRequest,
    pods: dict[int, Choice],
) -> None:
    """No GPU twice, none that is not free, no more pods on a node than its CPUs are enough for."""
    indices = itertools.count()
    by_index = {next(indices): role for role in request.members for _ in range(role.pods)}
    left = {name: set(fleet.free(name)) for name in fleet.nodes}
    names, spent = sorted(fleet.nodes), Counter[str]()
    for index, pod in pods.items():
        role = by_index[index]
        assert len(pod.gpus) == role.pod.gpus
        assert left[pod.node] >= set(pod.gpus)
        left[pod.node] -= set(pod.gpus)
        spent[pod.node] += role.needs[0]
    assert all(spent[name] <= cpus[at, 0] or not spent[name] for at, name in enumerate(names))


def roles(data: st.DataObject) -> GangRequest:
    drawn = [
        Role(
            pod=Whole(containers=(data.draw(st.integers(1, 3)),)),
            pods=data.draw(st.integers(1, 2)),
            needs=(data.draw(st.integers(0, 2)),),
        )
        for _ in range(2)
    ]
    return GangRequest(pod=drawn[0].pod, pods=drawn[0].pods, needs=drawn[0].needs, roles=tuple(drawn[1:]))


@SOME
@given(clusters(most=4), st.data())
def test_members_that_differ_have_places_together(
    cluster: tuple[Fleet, np.ndarray[tuple[int, int], np.dtype[np.int64]]], data: st.DataObject
) -> None:
    fleet, cpus = cluster
    request = roles(data)
    try:
        choice = place_gang(fleet, request, amounts=cpus)
    except NoPlaceError:
        return
    assert len(choice.pods) == sum(role.pods for role in request.members)
    sound(fleet, cpus, request, dict(enumerate(choice.pods)))
    assert choice.reach == LEVELS[reach(fleet, list(choice.nodes))]


@SOME
@given(clusters(), st.data())
def test_lost_members_come_back_and_the_others_stay(
    cluster: tuple[Fleet, np.ndarray[tuple[int, int], np.dtype[np.int64]]], data: st.DataObject
) -> None:
    fleet, cpus = cluster
    request = roles(data)
    try:
        before = place_gang(fleet, request, amounts=cpus)
    except NoPlaceError:
        return
    lost = data.draw(st.sets(st.integers(0, len(before.pods) - 1)))
    fixed = {index: pod for index, pod in enumerate(before.pods) if index not in lost}
    home = {index: before.pods[index] for index in lost}
    by_index = [role for role in request.members for _ in range(role.pods)]
    for index, pod in fixed.items():
        fleet.set_free(pod.node, fleet.free(pod.node) - set(pod.gpus))
        cpus[sorted(fleet.nodes).index(pod.node), 0] -= by_index[index].needs[0]
    again = place_gang(fleet, request, amounts=cpus, fixed=fixed, home=home)
    assert again.pods == before.pods
    failed = data.draw(st.sampled_from(sorted(fleet.nodes)))
    fleet.set_free(failed, [])
    try:
        again = place_gang(fleet, request, amounts=cpus, fixed=fixed, home=home)
    except NoPlaceError:
        return
    assert all(again.pods[index] == pod for index, pod in fixed.items())
    sound(fleet, cpus, request, {index: again.pods[index] for index in lost})


@SOME
@given(clusters(), st.data())
def test_as_many_as_have_places_are_placed(
    cluster: tuple[Fleet, np.ndarray[tuple[int, int], np.dtype[np.int64]]], data: st.DataObject
) -> None:
    fleet, cpus = cluster
    pod, least = Whole(containers=(data.draw(st.integers(1, 4)),)), data.draw(st.integers(1, 3))
    request = GangRequest(pod=pod, pods=6, least_pods=least, needs=(1,), max_nodes=data.draw(st.integers(1, 3)))

    def fits(pods: int) -> bool:
        try:
            place_gang(fleet, GangRequest(pod=pod, pods=pods, needs=(1,), max_nodes=request.max_nodes), amounts=cpus)
        except NoPlaceError:
            return False
        return True

    most = max((pods for pods in range(least, 7) if fits(pods)), default=0)
    if most:
        assert len(place_gang(fleet, request, amounts=cpus).pods) == most
    else:
        with pytest.raises(NoPlaceError, match=f"{least} to 6 pods"):
            place_gang(fleet, request, amounts=cpus)
