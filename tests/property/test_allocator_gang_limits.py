"""Gangs with limits, members that differ, stay or come back, against every way to share them over a few nodes."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_placement import place_gang
from dradriver.allocator.gang_request import GangChoice, GangRequest, Role
from dradriver.allocator.request import Choice, Constraint, Level, NoPlaceError, Strategy, Whole
from dradriver.topology.network_levels import location
from tests.effort import examples
from tests.property.test_allocator_gangs import CPUS, FOUR

SOME = settings(deadline=None, max_examples=examples(100))
REACHES = ("node", "fabric", "leaf", "spine", "zone", "cluster")
GONE = "gone"  # a node that the fleet does not know

Where = dict[int, str]
"""By member its node."""


class Story(msgspec.Struct):
    """A small cluster, a gang, and what of it has a place or had one."""

    fleet: Fleet
    cpus: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    request: GangRequest
    eligible: list[list[str]]
    fixed: dict[int, Choice]
    home: dict[int, Choice]

    def place(self) -> GangChoice:
        return place_gang(
            self.fleet, self.request, eligible_by_role=self.eligible, amounts=self.cpus,
            fixed=self.fixed, home=self.home,
        )  # fmt: skip

    @property
    def roles(self) -> list[int]:
        """By member its role."""
        return [number for number, role in enumerate(self.request.members) for _ in range(role.pods)]


@st.composite
def stories(draw: st.DrawFn, *, roles: int = 2, stay: bool = False, back: bool = False) -> Story:
    fleet, cpus = Fleet(), []
    for number in range(draw(st.integers(1, 4))):
        fleet.set_node(f"n{number}", FOUR, draw(st.sets(st.integers(0, 3))), row=number)
        fleet.set_location(f"n{number}", location(
            zone="z", spine=draw(st.sampled_from("xy")), leaf=draw(st.sampled_from(("", "1", "2"))),
            fabric=draw(st.sampled_from(("", "f"))), gbps=draw(st.sampled_from((0, 50))),
        ))  # fmt: skip
        cpus.append([draw(st.integers(0, CPUS))])
    names = sorted(fleet.nodes)
    members = [
        Role(
            pod=Whole(
                containers=(draw(st.integers(1, 3)),),
                required=(Constraint.NVLINK,) if draw(st.integers(0, 4)) == 0 else (),
                strategy=Strategy.SPREAD if draw(st.integers(0, 9)) == 0 else Strategy.PACK,
            ),
            pods=draw(st.integers(1, (5, 3, 2)[roles - 1])),
            needs=(draw(st.integers(0, 2)),),
        )
        for _ in range(roles)
    ]
    near = draw(st.sampled_from(("", "", "node", "leaf", "spine")))
    request = GangRequest(
        pod=members[0].pod, pods=members[0].pods, needs=members[0].needs, roles=tuple(members[1:]),
        max_nodes=draw(st.sampled_from((None, None, 1, 2))),
        min_gpus_per_node=draw(st.sampled_from((0, 0, 2, 3, 4))),
        min_network_gbps=draw(st.sampled_from((0, 0, 50))),
        near=near, near_required=bool(near) and draw(st.booleans()),
    )  # fmt: skip
    every = [draw(st.sets(st.sampled_from(names))) if draw(st.integers(0, 4)) == 0 else names for _ in members]
    story = Story(fleet, np.array(cpus, dtype=np.int64), request, [sorted(own) for own in every], {}, {})
    for index, number in enumerate(story.roles):
        size = request.members[number].pod.gpus
        if stay and draw(st.booleans()):
            name = draw(st.sampled_from((*names, GONE)))
            gpus = draw(st.sets(st.integers(0, 3), min_size=size, max_size=size))
            story.fixed[index] = choice(name, gpus)
            if name != GONE:
                fleet.set_free(name, fleet.free(name) - gpus)
        elif back and draw(st.booleans()):
            gpus = draw(st.sets(st.integers(0, 3), min_size=1))
            story.home[index] = choice(draw(st.sampled_from((*names, GONE))), gpus)
    return story


def choice(node: str, gpus: set[int]) -> Choice:
    own = tuple(sorted(gpus))
    return Choice(gpus=own, containers=(own,), ring=own, busbw_gbps=0.0, bandwidth_gbps=0.0, level=Level.NODE,
                  score=0, node=node)  # fmt: skip


@functools.cache
def admissible(pod: Whole, gpus: frozenset[int]) -> bool:
    """Whether these GPUs can be a pod's: asked of a node that has no others."""
    alone = Fleet()
    alone.set_node("n", FOUR, gpus)
    try:
        return alone.rank(pod)[0].gpus == tuple(sorted(gpus))
    except NoPlaceError:
        return False


@functools.cache
def fit(free: frozenset[int], pods: tuple[Whole, ...]) -> bool:
    """Whether so many pods find sets on a node at once."""
    if not pods:
        return True
    return any(
        fit(free - set(part), pods[1:])
        for part in itertools.combinations(sorted(free), pods[0].gpus)
        if admissible(pods[0], frozenset(part))
    )


def reach(fleet: Fleet, nodes: Sequence[str]) -> str:
    """The narrowest level that holds nodes."""
    if len(set(nodes)) < 2:
        return "node"
    domains = [fleet.location(name).domains for name in nodes]
    for number, level in enumerate(REACHES[1:-1]):
        if domains[0][number] is not None and len({own[number] for own in domains}) == 1:
            return level
    return "cluster"


def is_near(fleet: Fleet, nodes: Sequence[str], level: str) -> bool:
    """Whether one domain of a level holds all, or of one inside it: a fabric is inside none."""
    if len(set(nodes)) < 2:
        return True
    inner = [name for name in REACHES[1 : REACHES.index(level) + 1] if name != "fabric"]
    domains = [fleet.location(name).domains for name in nodes]
    return any(
        domains[0][at] is not None and len({own[at] for own in domains}) == 1
        for at in (REACHES.index(name) - 1 for name in inner)
    )


def keeps_limits(story: Story, where: Where) -> bool:
    """Whether a gang that stands so is as its request says; of one whose members all stay nothing is asked."""
    if len(story.fixed) == len(story.roles):
        return True
    request, gpus = story.request, Counter[str]()
    for index, name in where.items():
        gpus[name] += request.members[story.roles[index]].pod.gpus
    known = sorted(gpus.keys() - {GONE})
    if request.max_nodes is not None and len(gpus) > request.max_nodes:
        return False
    if any(count < request.min_gpus_per_node for count in gpus.values()):
        return False
    if request.near_required and not is_near(story.fleet, known, request.near):
        return False
    return not request.min_network_gbps or len(known) < 2 or (
        is_near(story.fleet, known, "leaf")
        and all(story.fleet.location(name).gbps >= request.min_network_gbps for name in known)
    )  # fmt: skip


def every_way(story: Story) -> Iterator[Where]:
    """Every way to share the members that have no place over the nodes, equal ones not told apart."""
    names, members, roles = sorted(story.fleet.nodes), story.request.members, story.roles
    left = [index for index in range(len(roles)) if index not in story.fixed]
    counts = Counter(roles[index] for index in left)
    fixed = {index: own.node for index, own in story.fixed.items()}
    by_role = [itertools.combinations_with_replacement(story.eligible[role], counts[role]) for role in sorted(counts)]
    for combined in itertools.product(*by_role):
        nodes = [name for own in combined for name in own]
        there: dict[str, list[int]] = defaultdict(list)
        for index, name in zip(left, nodes, strict=True):
            there[name].append(roles[index])
        where = fixed | dict(zip(left, nodes, strict=True))
        if (
            keeps_limits(story, where)
            and all(spent(story, own) <= story.cpus[names.index(name), 0] or not spent(story, own)
                    for name, own in there.items())
            and all(fit(story.fleet.free(name), tuple(members[number].pod for number in own))
                    for name, own in there.items())
        ):  # fmt: skip
            yield where


def spent(story: Story, roles: Sequence[int]) -> int:
    return sum(story.request.members[number].needs[0] for number in roles)


def is_sound(story: Story, pods: Mapping[int, Choice]) -> None:
    """Everything that is promised of a placement, but that it is the best."""
    members, free = story.request.members, {name: set(story.fleet.free(name)) for name in story.fleet.nodes}
    assert {index: pods[index] for index in story.fixed} == story.fixed
    cpus = Counter[str]()
    for index, pod in pods.items():
        if index in story.fixed:
            continue
        role = story.roles[index]
        assert admissible(members[role].pod, frozenset(pod.gpus))
        assert pod.node in story.eligible[role]
        assert free[pod.node] >= set(pod.gpus)
        free[pod.node] -= set(pod.gpus)
        cpus[pod.node] += members[role].needs[0]
    for at, name in enumerate(sorted(story.fleet.nodes)):
        assert not cpus[name] or cpus[name] <= story.cpus[at, 0]
    assert keeps_limits(story, {index: pod.node for index, pod in pods.items()})


def check(story: Story, *, nearest: bool = True) -> None:
    """It has a place where there is one, is sound, and as near as can be."""
    ways = list(every_way(story))
    if not ways:
        with pytest.raises(NoPlaceError) as caught:
            story.place()
        assert str(caught.value)
        return
    found = story.place()
    assert len(found.pods) == len(story.roles)
    is_sound(story, dict(enumerate(found.pods)))
    nodes = [pod.node for pod in found.pods]
    known = sorted({*nodes} - {GONE})
    assert found.reach == ("cluster" if GONE in nodes else reach(story.fleet, nodes))
    near = story.request.near
    missed = bool(near) and (GONE in nodes or not is_near(story.fleet, nodes, near))
    assert (f"near: {near}" in found.fallback) == missed
    spread = story.request.pod.strategy is Strategy.SPREAD  # goes to many nodes first
    if nearest and not spread and len(story.fixed) < len(story.roles):
        of_ways = [sorted({*way.values()} - {GONE}) for way in ways]
        if near and any(is_near(story.fleet, own, near) for own in of_ways):
            assert is_near(story.fleet, known, near)
            of_ways = [own for own in of_ways if is_near(story.fleet, own, near)]
        best = min(REACHES.index(reach(story.fleet, own)) for own in of_ways)
        assert reach(story.fleet, known) == REACHES[best]


@SOME
@given(stories(roles=1))
def test_equal_pods_have_the_nearest_places_within_their_limits(story: Story) -> None:
    check(story)


@SOME
@given(stories())
def test_members_that_differ_have_the_nearest_places_within_their_limits(story: Story) -> None:
    check(story)


@pytest.mark.slow
@SOME
@given(stories(roles=3))
def test_members_of_three_kinds_have_the_nearest_places_within_their_limits(story: Story) -> None:
    check(story)


@SOME
@given(st.integers(1, 2).flatmap(lambda roles: stories(roles=roles, stay=True)))
def test_late_members_are_placed_near_those_that_stay(story: Story) -> None:
    check(story)


@SOME
@given(st.integers(1, 2).flatmap(lambda roles: stories(roles=roles, stay=True, back=True)))
def test_members_come_back_only_within_the_limits(story: Story) -> None:
    check(story, nearest=False)


@SOME
@given(stories(roles=1), st.integers(1, 3))
def test_of_a_range_the_most_are_placed(story: Story, least: int) -> None:
    def ways(pods: int) -> list[Where]:
        request = msgspec.structs.replace(story.request, pods=pods)
        return list(every_way(msgspec.structs.replace(story, request=request)))

    pods = story.request.pods
    most = next((pods for pods in range(pods, min(least, pods) - 1, -1) if ways(pods)), 0)
    ranged = msgspec.structs.replace(story.request, least_pods=min(least, pods))
    if not most:
        with pytest.raises(NoPlaceError):
            place_gang(story.fleet, ranged, eligible_by_role=story.eligible, amounts=story.cpus)
        return
    found = place_gang(story.fleet, ranged, eligible_by_role=story.eligible, amounts=story.cpus)
    assert len(found.pods) == most
    is_sound(msgspec.structs.replace(story, request=msgspec.structs.replace(story.request, pods=most)),
             dict(enumerate(found.pods)))  # fmt: skip
