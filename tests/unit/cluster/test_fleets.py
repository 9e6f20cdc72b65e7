"""Which GPUs each tenant's workloads may have, counted GPU by GPU, whatever happens to nodes and claims meanwhile."""

from __future__ import annotations

import fnmatch
import logging
import random
from collections.abc import Mapping

import msgspec
import pytest

from dradriver.allocator import Fleet
from dradriver.api.base.objects import Node
from dradriver.api.claims.pins import Key, Usage
from dradriver.api.policies.fields import Gpus
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.cluster.gpus.fleets import Fleets
from dradriver.cluster.nodes.node_table import NodeTable
from tests.effort import sampled
from tests.unit.cluster.test_inventory import DYNAMIC, SHARED, gpu, inventory, share

NODES = ("x", "y", "z")
NAMESPACES = ("a", "b", "c", "free")


def relabel(table: NodeTable, name: str, pool: str) -> None:
    labels = {"kubernetes.io/hostname": name, "pool": pool}
    table.set_node(name, msgspec.convert({"metadata": {"name": name, "labels": labels}}, Node))


def may_have(tenants: Mapping[str, Tenant], whose: str, node: str, pool: str, number: int) -> bool:
    """Return whether a tenant may have a GPU, by the words of the policies file alone."""

    def fits(tenant: Tenant) -> bool:
        rule = tenant.partition
        return (
            rule is not None
            and (not rule.nodes or node in rule.nodes)
            and all({"pool": pool}.get(key) == value for key, value in rule.node_selector.items())
            and (not rule.products or any(fnmatch.fnmatchcase("NVIDIA H100 80GB HBM3", one) for one in rule.products))
            and (not rule.numbers or number in rule.numbers)
        )

    alone = next((name for name in sorted(tenants) if tenants[name].exclusive and fits(tenants[name])), whose)
    own = tenants.get(whose)
    return alone == whose and (own is None or own.partition is None or fits(own))


def free(fleet: Fleet) -> dict[str, frozenset[int]]:
    return {name: own for name in fleet.nodes if (own := fleet.free(name))}


def offered(fleet: Fleet) -> dict[str, frozenset[int]]:
    """Return which GPUs may be had in parts, by node."""
    offers = {name: group.offer_and_parts(slot)[0] for group in fleet.groups for slot, name in enumerate(group.names)}
    return {name: own for name, offer in offers.items() if (own := offer.shared | offer.sliced)}


def drawn(rng: random.Random) -> dict[str, Tenant]:
    def some() -> Gpus | None:
        if rng.random() < 0.2:
            return None
        return Gpus(
            nodes=tuple(rng.sample(NODES, 2)) if rng.random() < 0.3 else (),
            node_selector={"pool": rng.choice(("red", "blue"))} if rng.random() < 0.5 else {},
            products=(rng.choice(("NVIDIA H100*", "NVIDIA A100*")),) if rng.random() < 0.3 else (),
            numbers=tuple(sorted(rng.sample(range(8), 4))) if rng.random() < 0.5 else (),
        )

    found = {name: Tenant(namespaces=(name,), partition=some()) for name in "abc"}
    return {
        name: msgspec.structs.replace(tenant, exclusive=tenant.partition is not None and rng.random() < 0.5)
        for name, tenant in found.items()
    }


@pytest.mark.parametrize("seed", sampled(range(16)))
def test_each_tenant_sees_what_is_free_of_its_partition_and_of_no_other(seed: int) -> None:
    rng = random.Random(seed)
    table = NodeTable()
    mode = rng.choice((Mode(), SHARED, DYNAMIC))
    found = inventory(*NODES, mode=mode, table=table)
    tenants, pools = drawn(rng), dict.fromkeys(NODES, "")
    fleets = Fleets(
        found,
        table,
        lambda namespace: namespace if namespace in tenants and tenants[namespace].partition is not None else "",
    )
    fleets.follow(Policies(tenants=tenants))
    for step in range(30):
        what = rng.randrange(4)
        node = rng.choice(NODES)
        if what == 0:
            pools[node] = rng.choice(("red", "blue"))
            relabel(table, node, pools[node])
            fleets.relabelled(node)
        elif what == 1:
            held: dict[tuple[str, str], Usage] = {gpu(node, rng.randrange(8)): rng.choice((None, share(10)))}
            found.hold((rng.choice(NAMESPACES), f"c{rng.randrange(6)}"), held)
        elif what == 2:
            found.hold(rng.choice(tuple(found.holds.claims()) or (("a", "c0"),)), {})
        elif step % 5 == 0:
            tenants = drawn(rng)
            fleets.follow(Policies(tenants=tenants))
        namespace = rng.choice(NAMESPACES)
        whole = found.fleet
        seen = fleets.of(namespace)
        of_whole = {
            (name, number): "free" if number in whole.free(name) else "" for name in whole.nodes for number in range(8)
        }
        want: dict[str, set[int]] = {}
        parts: dict[str, set[int]] = {}
        for (name, number), state in of_whole.items():
            if may_have(tenants, namespace, name, pools[name], number):
                if state:
                    want.setdefault(name, set()).add(number)
                if number in offered(whole).get(name, ()):
                    parts.setdefault(name, set()).add(number)
        assert free(seen) == want, (seed, step, namespace, tenants, pools)
        assert offered(seen) == parts, (seed, step, namespace, tenants, pools)
        assert all(map(fleets.is_right, NODES))
        claims: list[Key] = sorted(found.holds.claims())[:2]
        without, all_without = fleets.without(*claims, namespace=namespace), fleets.without(*claims, namespace="")
        assert free(without) == {
            name: own
            for name in all_without.nodes
            if (
                own := {
                    number
                    for number in all_without.free(name)
                    if may_have(tenants, namespace, name, pools[name], number)
                }
            )
        }


def test_without_partitions_all_look_at_the_same_fleet() -> None:
    table = NodeTable()
    found = inventory("x", table=table)
    fleets = Fleets(found, table, lambda namespace: namespace if namespace == "a" else "")
    fleets.follow(Policies(tenants={"a": Tenant(namespaces=("a",))}))
    assert fleets.of("a") is found.fleet
    fleets.follow(Policies(tenants={"a": Tenant(namespaces=("a",), partition=Gpus(numbers=(1,)))}))
    assert fleets.of("a") is not found.fleet
    assert fleets.of("b") is found.fleet, "what is nobody's alone is everybody's"


def test_whose_gpus_are_that_two_want_to_themselves_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    table = NodeTable()
    found = inventory(*NODES, table=table)
    fleets = Fleets(found, table, lambda namespace: namespace)
    one, other = Gpus(node_selector={"pool": "red"}), Gpus(nodes=("x", "y"), numbers=(0, 1))
    for node in NODES:
        relabel(table, node, "red")
    fleets.follow(
        Policies(
            tenants={
                "zeal": Tenant(namespaces=("zeal",), partition=one, exclusive=True),
                "apt": Tenant(namespaces=("apt",), partition=other, exclusive=True),
            }
        )
    )
    with caplog.at_level(logging.WARNING):
        assert free(fleets.of("apt")) == {"x": {0, 1}, "y": {0, 1}}
        assert free(fleets.of("zeal")) == {"x": set(range(2, 8)), "y": set(range(2, 8)), "z": set(range(8))}
        relabel(table, "x", "blue")
        relabel(table, "x", "red")
        fleets.relabelled("x")
        fleets.of("zeal")
    (said,) = (record.message for record in caplog.records)
    assert said.startswith(
        "Policies file: the exclusive partitions of tenants apt and zeal both contain GPUs of node x. Tenant apt gets"
    )


def test_a_view_goes_on_by_small_steps() -> None:
    table = NodeTable()
    found = inventory(*NODES, table=table)
    fleets = Fleets(found, table, lambda namespace: namespace)
    fleets.follow(Policies(tenants={"a": Tenant(namespaces=("a",), partition=Gpus(nodes=("x",)))}))
    fleets.of("a")
    found.hold(("b", "c"), {gpu("y"): None})
    found.hold(("b", "d"), {gpu("x"): None})
    late = iter((True, True, False))
    assert fleets.catch_up(lambda: next(late)), "the fleet first, a node at a time"
    assert 0 in fleets.views.of("a", ()).fleet.free("x")
    while fleets.catch_up(lambda: True):
        pass
    assert 0 not in fleets.views.of("a", ()).fleet.free("x")


def test_what_a_view_has_wrong_is_found() -> None:
    table = NodeTable()
    found = inventory(*NODES, table=table)
    fleets = Fleets(found, table, lambda namespace: namespace)
    fleets.follow(Policies(tenants={"a": Tenant(namespaces=("a",), partition=Gpus(nodes=("x",), numbers=(1, 2)))}))
    view = fleets.of("a")
    assert all(map(fleets.is_right, NODES))
    view.set_free("x", (1,))
    assert [fleets.is_right(node) for node in NODES] == [False, True, True]
    found.set_node("x")
    assert fleets.of("a").free("x") == {1, 2}
    relabel(table, "x", "red")
    fleets.follow(Policies(tenants={"a": Tenant(namespaces=("a",), partition=Gpus(node_selector={"pool": "red"}))}))
    fleets.of("a")
    relabel(table, "x", "blue")
    assert not fleets.is_right("x"), "its labels are others, and nobody has said so"
    fleets.relabelled("x")
    assert fleets.is_right("x")
    assert not fleets.of("a").nodes
