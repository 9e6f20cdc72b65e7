"""Parts on nodes that come and go: a fleet answers as one that has just been made of the same nodes."""

from __future__ import annotations

import random

import msgspec
import pytest

from dradriver.allocator import Fleet
from dradriver.allocator.parts.existing_instances import with_instances
from dradriver.allocator.parts.offers import Offer, ShareRule
from dradriver.allocator.request import (
    Amount,
    Mig,
    MigPart,
    NoPlaceError,
    Part,
    Request,
    Share,
    SharePart,
    Strategy,
    Whole,
)
from dradriver.topology import profiles
from tests.effort import sampled

H100 = profiles.load("hgx-h100")
TOTAL = H100.gpus[0].memory_mib
ALL = frozenset(range(8))
OFFERS = [
    Offer(),
    Offer(shared=ALL),
    Offer(shared=ALL, rules=tuple((number, ShareRule(memory_mib=2 * TOTAL)) for number in range(8))),
    Offer(shared=frozenset({0, 1, 2}), sliced=frozenset({3, 4, 5}), parts_only=frozenset({4})),
    Offer(sliced=ALL),
    Offer(shared=ALL, sliced=ALL, tenants=((1, 1), (2, 2), (3, 1), (6, 2))),
    Offer(shared=ALL, rules=((0, ShareRule(equal=4)),), tenants=((0, 2), (1, 1), (7, 3))),
]
Node = tuple[Offer, dict[int, list[Part]]]
REQUESTS: list[Request] = [
    *(Share(amounts=(Amount(30, 9000),) * 2, strategy=strategy) for strategy in Strategy),
    Share(amounts=(Amount(60, 50_000), Amount(20, 50_000), Amount(20, 100))),
    Mig(profiles=(("1g.10gb",), ("3g.40gb", "3g.40gb"))),
    Whole(containers=(4,)),
]


def made(nodes: dict[str, Node]) -> Fleet:
    fleet = Fleet()
    for name, node in nodes.items():
        put(fleet, name, node)
    return fleet


def put(fleet: Fleet, name: str, node: Node) -> None:
    fleet.set_node(name, H100, ALL)
    fleet.set_offer(name, node[0])
    fleet.set_parts(name, node[1])


def answer(fleet: Fleet, request: Request, tenant: int = 0) -> object:
    try:
        return fleet.rank(request, tenant=tenant)
    except NoPlaceError as error:
        return str(error)


def parts(rng: random.Random, offer: Offer) -> dict[int, list[Part]]:
    found: dict[int, list[Part]] = {}
    for gpu in range(8):
        if rng.random() < 0.5:
            continue
        if gpu in offer.shared:
            found[gpu] = [SharePart(gpu=gpu, amount=Amount(rng.choice((20, 50, 80)), rng.choice((1000, 60_000))))]
        elif gpu in offer.sliced:
            found[gpu] = [MigPart(gpu=gpu, profile="1g.10gb", start=rng.choice((0, 6)), size=1)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(12), fast=1))
def test_a_fleet_whose_nodes_came_and_went_answers_as_a_new_one(seed: int) -> None:
    rng = random.Random(seed)
    nodes: dict[str, Node] = {}
    fleet = Fleet()
    for _ in range(12):
        name = rng.choice("abcde")
        if name in nodes and rng.random() < 0.5:
            del nodes[name]
            fleet.remove(name)
        else:
            offer = rng.choice(OFFERS)
            nodes[name] = offer, parts(rng, offer)
            put(fleet, name, nodes[name])
        for request in REQUESTS:
            for tenant in (0, 1, 2):
                assert answer(fleet, request, tenant) == answer(made(nodes), request, tenant)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(6), fast=2))
def test_a_narrowed_fleet_answers_as_one_that_offers_those_gpus_alone(seed: int) -> None:
    rng = random.Random(seed)
    nodes: dict[str, Node] = {name: (offer, parts(rng, offer)) for name, offer in zip("abcdefg", OFFERS, strict=True)}
    among = {name: frozenset(rng.sample(range(8), rng.randrange(9))) for name in rng.sample("abcdefg", 4)}
    fleet, same = made(nodes), made(nodes)
    for name, numbers in among.items():
        own = nodes[name][0]
        same.set_free(name, numbers)
        same.set_offer(name, msgspec.structs.replace(own, shared=own.shared & numbers, sliced=own.sliced & numbers))
    narrowed = fleet.narrowed(among | {"unknown": ALL})
    for request in REQUESTS:
        for tenant in (0, 1, 2):
            assert answer(narrowed, request, tenant) == answer(same, request, tenant)
            assert answer(fleet, request, tenant) == answer(made(nodes), request, tenant), "the fleet itself stays"


def test_memory_that_is_promised_twice_counts_also_where_too_many_kinds_are_wanted_to_look_at_all() -> None:
    """Shares of eight sizes, which are dealt out one after the other on nodes that have room in sum."""
    fleet = made({"a": (OFFERS[2], {gpu: [SharePart(gpu=gpu, amount=Amount(100, 1))] for gpu in range(1, 8)})})
    sizes = (*(Amount(10, TOTAL // 5 + 1),) * 6, *(Amount(1, number) for number in range(1, 8)))
    (choice,) = fleet.rank(Share(amounts=sizes))
    assert {part.gpu for each in choice.containers for part in each} == {0}


def test_all_instances_of_a_node_are_had_by_one_pod_of_more_kinds_than_are_looked_at_together() -> None:
    seven = [("1g.10gb", start) for start in range(7)]
    instances = [seven, seven, [("3g.40gb", 0), ("3g.40gb", 4)], [("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4)]]
    instances.append([("4g.40gb", 0)])
    gpus = [with_instances(gpu, own) for gpu, own in zip(H100.gpus, [*instances, [], [], []], strict=True)]
    fleet = Fleet()
    fleet.set_node("a", msgspec.structs.replace(H100, gpus=tuple(gpus)), ALL)
    fleet.set_offer("a", Offer(sliced=ALL, parts_only=ALL))
    wanted = tuple(profile for own in instances for profile, _ in own)
    (choice,) = fleet.rank(Mig(profiles=(wanted,)))
    assert sorted(
        (p.gpu, p.profile, p.start) for each in choice.containers for p in each if isinstance(p, MigPart)
    ) == [(number, *one) for number, own in enumerate(instances) for one in sorted(own)]
    with pytest.raises(NoPlaceError):
        fleet.rank(Mig(profiles=((*wanted, "1g.10gb"),)))
