"""Parts of GPUs, whatever was placed and given back before, against brute force over a few small nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator import Fleet, NoPlaceError, Offer
from dradriver.allocator.parts.existing_instances import with_instances
from dradriver.allocator.parts.offers import ShareRule
from dradriver.allocator.request import Amount, Mig, MigPart, Part, PartChoice, Share, SharePart, Strategy, Whole
from dradriver.topology import profiles
from dradriver.topology.machine import Machine, MigProfile
from tests.effort import examples

MACHINE = profiles.load("dgx-a100").subset([0, 1, 2])
GPUS = [gpu.index for gpu in MACHINE.gpus]
MEMORY = MACHINE.gpus[0].memory_mib
BY_NAME: dict[str, MigProfile] = {profile.name: profile for profile in MACHINE.gpus[0].profiles}
NODES = ("a", "b")
AMOUNTS = st.builds(Amount, st.sampled_from((10, 25, 50, 60, 100)), st.sampled_from((0, 0, 1000, 20_000, 50_000)))
RULES = st.sampled_from((ShareRule(MEMORY * 3 // 2), ShareRule(MEMORY * 4), ShareRule(equal=2), ShareRule(equal=3)))
SHARES = st.builds(
    Share, amounts=st.lists(AMOUNTS, min_size=1, max_size=3).map(tuple), strategy=st.sampled_from(Strategy)
)
PROFILES = st.lists(st.sampled_from(sorted(BY_NAME)), min_size=1, max_size=3).map(tuple)
SLICES = st.builds(Mig, profiles=st.tuples(PROFILES), strategy=st.sampled_from(Strategy))
WHOLES = st.builds(Whole, containers=st.tuples(st.integers(1, 3)))
STEPS = st.lists(SHARES | SLICES | WHOLES | st.integers(0, 9), max_size=14)  # a number gives back that placement
OFFERS = st.builds(
    Offer,
    shared=st.frozensets(st.sampled_from(GPUS)),
    sliced=st.frozensets(st.sampled_from(GPUS)),
    parts_only=st.frozensets(st.sampled_from(GPUS), max_size=1),
    rules=st.dictionaries(st.sampled_from(GPUS), RULES).map(lambda rules: tuple(sorted(rules.items()))),
)
INSTANCES = st.dictionaries(
    st.sampled_from(GPUS),
    st.sampled_from(
        (
            tuple(("1g.5gb", start) for start in range(7)),
            (("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)),
            (("2g.10gb", 0), ("2g.10gb", 2), ("3g.20gb", 4)),
            (("7g.40gb", 0),),
            (),
        )
    ),
)


class Books:
    """What is on each GPU, kept the simple way beside a fleet that is told of each change."""

    def __init__(self, offers: dict[str, Offer], there: dict[str, dict[int, tuple[tuple[str, int], ...]]]) -> None:
        self.offers = offers
        self.there = there
        self.machines = {
            node: msgspec.structs.replace(
                MACHINE,
                gpus=tuple(
                    with_instances(gpu, there[node][gpu.index]) if gpu.index in there[node] else gpu
                    for gpu in MACHINE.gpus
                ),
            )
            for node in NODES
        }
        self.whole: dict[str, set[int]] = {node: set() for node in NODES}
        self.parts: dict[str, list[Part]] = {node: [] for node in NODES}
        self.fleet = Fleet()
        for node in NODES:
            self.fleet.set_node(node, self.machines[node], GPUS)
            self.fleet.set_offer(node, offers[node])

    def tell(self, fleet: Fleet, node: str) -> None:
        fleet.set_free(node, set(GPUS) - self.whole[node])
        fleet.set_parts(node, {gpu: self.on(node, gpu) for gpu in GPUS})

    def on(self, node: str, gpu: int) -> list[Part]:
        return [part for part in self.parts[node] if part.gpu == gpu]

    def empty(self, node: str) -> set[int]:
        return {gpu for gpu in GPUS if gpu not in self.whole[node] and not self.on(node, gpu)}

    def cost(self, node: str, parts: list[Part]) -> tuple[int, float]:
        """Return how many empty GPUs some parts open, and what they cost: what is left beside shares, or worth lost."""
        gpus = {part.gpu for part in parts}
        cost = 0.0
        for gpu in gpus:
            then = [*self.on(node, gpu), *(part for part in parts if part.gpu == gpu)]
            shares = [part.amount for part in then if isinstance(part, SharePart)]
            cores, memory = sum(each.cores for each in shares), sum(each.memory_mib for each in shares)
            promised = rule_of(self.offers[node], gpu).memory_mib or MEMORY
            left = 1 - cores / 100 + (promised - memory) / MEMORY
            cost += left if shares else worth(self.on(node, gpu)) - worth(then)
        return len(gpus & self.empty(node)), cost

    def options(self, node: str, request: Share | Mig) -> Iterator[list[Part]]:
        """Return every way of having the request's parts of a node, placements and all."""
        offer = self.offers[node]
        each: list[list[Part]]
        if isinstance(request, Share):
            each = [
                [
                    SharePart(gpu=gpu, amount=taken)
                    for gpu in sorted(offer.shared - self.whole[node])
                    if (taken := takes(amount, rule_of(offer, gpu))) is not None
                ]
                for amount in request.amounts
            ]
        else:
            each = [
                [
                    MigPart(gpu=gpu, profile=name, start=start, size=BY_NAME[name].size)
                    for gpu in sorted(offer.sliced - self.whole[node])
                    for start in BY_NAME[name].starts
                    if (name, start) in self.there[node].get(gpu, [(name, start)])
                ]
                for name in request.profiles[0]
            ]
        for parts in itertools.product(*each):
            if all(
                fits([*self.on(node, gpu), *(p for p in parts if p.gpu == gpu)], rule_of(offer, gpu))
                for gpu in {p.gpu for p in parts}
            ):
                yield list(parts)


def rule_of(offer: Offer, gpu: int) -> ShareRule:
    return dict(offer.rules).get(gpu, ShareRule())


def takes(amount: Amount, rule: ShareRule) -> Amount | None:
    """Return what a share takes of a GPU; None for more than one can have."""
    asked, equal = amount.of(MEMORY), rule.equal or 1
    most = Amount(100 // equal, MEMORY // equal)
    if asked.cores > most.cores or asked.memory_mib > most.memory_mib:
        return None
    return most if rule.equal else asked


def fits(parts: list[Part], rule: ShareRule) -> bool:
    """Return whether one GPU can hold all these parts."""
    shares = [part for part in parts if isinstance(part, SharePart)]
    slices = [part for part in parts if isinstance(part, MigPart)]
    spans = [set(range(part.start, part.start + part.size)) for part in slices]
    names = [part.profile for part in slices]
    return (
        not (shares and slices)
        and sum(part.amount.cores for part in shares) <= 100
        and sum(part.amount.memory_mib for part in shares) <= (rule.memory_mib or MEMORY)
        and len(set().union(*spans)) == sum(map(len, spans))
        and all(part.start in BY_NAME[part.profile].starts for part in slices)
        and sum(BY_NAME[name].compute for name in names) <= 7
        and all(names.count(name) <= BY_NAME[name].most for name in names)
    )


def worth(parts: list[Part]) -> int:
    """Return what instances of each profile alone could still take beside some, in memory slices, the most most."""
    slices = [part for part in parts if isinstance(part, MigPart)]
    taken = {slice_ for part in slices for slice_ in range(part.start, part.start + part.size)}
    room = []
    for profile in BY_NAME.values():
        fit, end = 0, 0
        for start in profile.starts:  # ascending: of spans of one length the greedy choice is the most
            if start >= end and taken.isdisjoint(range(start, start + profile.size)):
                fit, end = fit + 1, start + profile.size
        same = sum(part.profile == profile.name for part in slices)
        room.append(min(fit, profile.most - same) * profile.size)
    return sum(slices << rank for rank, slices in enumerate(sorted(room)))


def wanted(request: Share | Mig, choice: PartChoice, offer: Offer) -> bool:
    """Return whether each container gets what it asks for."""
    if isinstance(request, Share):
        every = [part for (part,) in choice.containers if isinstance(part, SharePart)]
        told = [takes(one, rule_of(offer, part.gpu)) for one, part in zip(request.amounts, every, strict=True)]
        return [part.amount for part in every] == told
    return tuple(tuple(p.profile for p in parts if isinstance(p, MigPart)) for parts in choice.containers) == (
        request.profiles
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(150))
@given(
    st.fixed_dictionaries(dict.fromkeys(NODES, OFFERS)), st.fixed_dictionaries(dict.fromkeys(NODES, INSTANCES)), STEPS
)
def test_there_is_a_place_exactly_when_brute_force_finds_one_and_it_opens_no_gpu_without_need(
    offers: dict[str, Offer],
    there: dict[str, dict[int, tuple[tuple[str, int], ...]]],
    steps: list[Share | Mig | Whole | int],
) -> None:
    books = Books(offers, there)
    placed: list[tuple[str, list[Part], set[int]]] = []
    for step in steps:
        if isinstance(step, int):
            if step < len(placed):
                node, parts, gpus = placed.pop(step)
                for part in parts:
                    books.parts[node].remove(part)
                books.whole[node] -= gpus
                books.tell(books.fleet, node)
            continue
        fleet_again = Fleet()
        for node in reversed(NODES):  # the same facts, told otherwise
            fleet_again.set_node(node, books.machines[node], [])
            books.tell(fleet_again, node)
            fleet_again.set_offer(node, offers[node])
        try:
            choice = books.fleet.rank(step)[0]
        except NoPlaceError:
            if isinstance(step, Whole):
                assert all(len(books.empty(node) - offers[node].parts_only) < step.gpus for node in NODES)
            else:
                assert not any(next(books.options(node, step), None) for node in NODES)
            continue
        assert fleet_again.rank(step)[0] == choice
        assert choice.node in [other.node for other in books.fleet.rank(step, eligible=[choice.node])]
        if isinstance(step, Whole):
            assert set(choice.gpus) <= books.empty(choice.node) - offers[choice.node].parts_only
            placed.append((choice.node, [], set(choice.gpus)))
            books.whole[choice.node] |= set(choice.gpus)
        else:
            assert isinstance(choice, PartChoice)
            assert wanted(step, choice, offers[choice.node])
            parts = [part for parts in choice.containers for part in parts]
            assert parts in list(books.options(choice.node, step))
            if step.strategy in (Strategy.BEST_FIT, Strategy.PACK):
                free = books.empty(choice.node) - offers[choice.node].parts_only
                opened = len(free & {part.gpu for part in parts})
                least = min(len(free & {p.gpu for p in each}) for each in books.options(choice.node, step))
                assert opened == least
                if len(parts) == 1 and opened:
                    assert all(
                        len((books.empty(n) - offers[n].parts_only) & {p.gpu for p in each}) == 1
                        for n in NODES
                        for each in books.options(n, step)
                    )
            placed.append((choice.node, parts, set()))
            books.parts[choice.node] += parts
        books.tell(books.fleet, choice.node)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(150))
@given(
    st.fixed_dictionaries(dict.fromkeys(NODES, st.lists(SHARES | SLICES, max_size=4))),
    st.fixed_dictionaries(dict.fromkeys(NODES, st.frozensets(st.sampled_from(GPUS)))),
    RULES,
    SHARES | SLICES,
)
def test_several_parts_cost_least_over_all_nodes(
    before: dict[str, list[Share | Mig]], held: dict[str, frozenset[int]], rule: ShareRule, request: Share | Mig
) -> None:
    offer = Offer(shared=frozenset(GPUS), sliced=frozenset(GPUS), rules=tuple((gpu, rule) for gpu in GPUS))
    books = Books(dict.fromkeys(NODES, offer), {node: {} for node in NODES})
    for node in NODES:
        for earlier in before[node]:
            if found := list(books.options(node, earlier)):
                books.parts[node] += found[len(found) // 2]
        books.whole[node] |= held[node] & books.empty(node)
        books.tell(books.fleet, node)
    request = msgspec.structs.replace(request, strategy=Strategy.BEST_FIT)
    try:
        choice = books.fleet.rank(request, limit=1)[0]
    except NoPlaceError:
        assert not any(next(books.options(node, request), None) for node in NODES)
        return
    chosen = books.cost(choice.node, [part for parts in choice.containers for part in parts])
    least = min(books.cost(node, parts) for node in NODES for parts in books.options(node, request))
    assert chosen[0] == least[0]
    assert chosen[0] > 0 or chosen[1] <= least[1] + 0.0001  # that which of the empty ones are opened counts as well


def test_the_machine_has_what_the_brute_force_assumes() -> None:
    assert isinstance(MACHINE, Machine)
    assert {gpu.memory_mib for gpu in MACHINE.gpus} == {MEMORY}
    assert max(profile.compute for profile in BY_NAME.values()) == 7
