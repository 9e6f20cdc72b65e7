"""Ranking the nodes of a cluster."""

from __future__ import annotations

import gc
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.choice.numbering import UnknownGpuError
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import Constraint, NodeWeights, NoPlaceError, Strategy, Whole
from dradriver.allocator.sets.tables import MachineTooLargeError, Tables, tables_of
from dradriver.topology import profiles
from dradriver.topology.machine import Machine, PathType
from dradriver.topology.network_levels import location
from tests.effort import sampled
from tests.fakes import machines

NVLINK, NUMA = Constraint.NVLINK, Constraint.SAME_NUMA
TWO = Whole(containers=(2,))
TWO_LINKED = Whole(containers=(2,), required=(NVLINK,))


def fleet(machine: Machine, **free: list[int] | range) -> Fleet:
    found = Fleet()
    for name, gpus in free.items():
        found.set_node(name, machine, gpus)
    return found


def names(found: Fleet, request: Whole, *, limit: int = 8) -> list[str]:
    return [choice.node for choice in found.rank(request, limit=limit)]


def test_bandwidth_decides_first() -> None:
    found = fleet(machines.dgx1(), n1=[0, 5], n2=[0, 1], n3=range(8))
    assert names(found, TWO) == ["n3", "n2", "n1"]


def _of(product: str) -> Machine:
    machine = machines.dgx1()
    gpus = tuple(msgspec.structs.replace(gpu, product=product) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus)


def test_a_cheaper_product_goes_first_among_sets_of_equal_bandwidth() -> None:
    found = fleet(_of("dear"), a=range(8), d=[0, 1])
    for name, gpus in (("b", range(8)), ("c", [0, 5])):
        found.set_node(name, _of("cheap"), gpus)
    assert names(found, TWO) == ["a", "b", "d", "c"], "names among equals, and less bandwidth last"
    prices = (("dear", 3.0), ("cheap", 1.0))
    weighed = Whole(containers=(2,), weights=NodeWeights(price=1, prices=prices))
    assert names(found, weighed) == ["b", "a", "d", "c"], "the cheap set with less bandwidth stays last"
    unknown = Whole(containers=(2,), weights=NodeWeights(price=1, prices=(("cheap", 1.0), ("other", 2.0))))
    assert names(found, unknown) == ["b", "a", "d", "c"], "without a price it is as the dearest"
    assert names(found, Whole(containers=(2,), weights=NodeWeights(price=1))) == names(found, TWO), (
        "no prices, no effect"
    )


def test_fuller_or_emptier_nodes_go_first_among_sets_of_equal_bandwidth() -> None:
    found = fleet(machines.dgx1(), a=range(8), b=[0, 1, 2, 3], c=[0, 1])
    best = found.rank(TWO)[0].bandwidth_gbps
    for utilisation, order in ((10.0, ["b", "a"]), (-10.0, ["a", "b"])):
        ranked = found.rank(Whole(containers=(2,), weights=NodeWeights(utilisation=utilisation)))
        assert ranked[0].bandwidth_gbps == best
        same = [choice.node for choice in ranked if choice.bandwidth_gbps == best]
        assert [name for name in same if name != "c"] == order


@pytest.mark.parametrize("strategy", Strategy)
def test_price_and_utilisation_never_cost_bandwidth(strategy: Strategy) -> None:
    rng = random.Random(3)
    for _ in range(20):
        found = Fleet()
        for n in range(6):
            free = [gpu for gpu in range(8) if rng.random() < 0.6]
            found.set_node(f"n{n}", _of(rng.choice(["dear", "cheap"])), free)
        plain = Whole(containers=(2,), strategy=strategy)
        weights = NodeWeights(price=10, utilisation=rng.choice([-5, 5]), prices=(("dear", 3.0), ("cheap", 1.0)))
        try:
            expected = sorted((one.node, one.bandwidth_gbps) for one in found.rank(plain))
        except NoPlaceError:
            continue
        ranked = found.rank(msgspec.structs.replace(plain, weights=weights))
        assert sorted((one.node, one.bandwidth_gbps) for one in ranked) == expected, "the same sets of the same nodes"
        rates = [one.bandwidth_gbps for one in ranked]
        assert [one.bandwidth_gbps for one in found.rank(plain)] == rates


def test_a_driver_that_is_too_old_or_not_known_is_no_place() -> None:
    machine = machines.dgx1()
    drivers = {"old": ("535.104.05", "12.2"), "new": ("580.95.05", "13.0"), "unknown": ("", "")}
    found = Fleet()
    for name, (driver, cuda) in drivers.items():
        found.set_node(name, msgspec.structs.replace(machine, driver_version=driver, cuda_version=cuda), range(8))
    assert len(names(found, TWO)) == 3
    for least in ({"min_driver": "535.105"}, {"min_cuda": "12.4"}):
        assert names(found, Whole(containers=(2,), **least)) == ["new"]  # type: ignore[arg-type]
    assert names(found, Whole(containers=(2,), min_driver="535")) == ["new", "old"]
    with pytest.raises(NoPlaceError, match=r"2 GPUs on driver 600 or later: .* No GPU"):
        found.rank(Whole(containers=(2,), min_driver="600"))


def test_a_driver_is_replaced_under_the_same_gpus() -> None:
    machine = msgspec.structs.replace(machines.dgx1(), driver_version="535.1")
    found = fleet(machine, n1=range(8))
    found.set_node("n1", msgspec.structs.replace(machine, driver_version="580.1"), range(8))
    assert names(found, Whole(containers=(2,), min_driver="580")) == ["n1"]


def test_among_equals_the_node_that_loses_least_is_filled() -> None:
    found = fleet(machines.dgx1(), whole=range(8), quad=range(4), pair=[4, 7])
    assert names(found, TWO_LINKED) == ["pair", "quad", "whole"]
    assert names(found, Whole(containers=(4,))) == ["quad", "whole"]
    assert names(found, Whole(containers=(1,)))[0] == "pair"


def test_a_single_gpu_goes_where_no_pair_breaks() -> None:
    found = fleet(machines.bridge_pairs(), a=[0, 1], b=[0, 1, 2], c=range(8))
    (first, *_) = found.rank(Whole(containers=(1,)))
    assert (first.node, first.gpus) == ("b", (2,))


def test_names_decide_at_last_over_all_shapes() -> None:
    found = fleet(machines.dgx1(), b=[0, 3], d=[0, 3])
    paths = machines.nested(((0, 0),), (PathType.PIX,), across=PathType.SYS)
    found.set_node("c", machines.build("other", paths=paths, links={(0, 1): 2}), [0, 1])
    found.set_node("a", machines.dgx1(), [0, 3])
    assert names(found, TWO) == ["a", "b", "c", "d"]
    assert names(found, TWO, limit=2) == ["a", "b"]


def test_a_rung_on_any_node_goes_before_bandwidth_on_another() -> None:
    found = fleet(machines.dgx1(), across=[0, 4], inside=[0, 1], far=[0, 5])
    ranked = found.rank(Whole(containers=(2,), preferred=(NUMA, NVLINK)))
    assert [(choice.node, choice.fallback) for choice in ranked] == [
        ("inside", ()),
        ("across", (NUMA,)),
        ("far", (NUMA, NVLINK)),
    ]


def test_only_eligible_nodes_are_looked_at() -> None:
    found = fleet(machines.dgx1(), n1=range(8), n2=[0, 5], n3=range(8))
    assert [choice.node for choice in found.rank(TWO, eligible={"n2", "gone"})] == ["n2"]
    with pytest.raises(NoPlaceError, match="No node is eligible"):
        found.rank(TWO, eligible=[])
    with pytest.raises(NoPlaceError, match="no node has GPUs"):
        Fleet().rank(TWO)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Whole(containers=(9,)), "The largest machine, n1, has 8 GPUs."),
        (Whole(containers=(6,)), "6 GPUs: no eligible node has such a free set. Most GPUs on one node: 5 free on n2."),
        (Whole(containers=(4,), required=(NVLINK,)),
         "such a free set. Largest free set with nvlink: 3 GPUs on n1. Without nvlink, there is a place on n2."),
        (Whole(containers=(0,)), "Request at least 1 GPU"),
        (Whole(containers=()), "Request at least 1 GPU"),
    ],
)  # fmt: skip
def test_refusals_name_the_nearest_thing(request_: Whole, message: str) -> None:
    found = fleet(machines.dgx1(), n1=[0, 1, 2], n2=[0, 1, 2, 6, 7])
    with pytest.raises(NoPlaceError) as caught:
        found.rank(request_)
    assert message in str(caught.value)


def test_who_asks_for_a_kind_that_no_node_has_is_told_what_there_is() -> None:
    found = fleet(machines.dgx1(), n1=range(8))
    found.set_node("n2", profiles.load("dgx-h100"), [])
    for wish, there in (
        ({"product": "H100"}, "The nodes have NVIDIA H100 80GB HBM3, Tesla V100-SXM2-16GB"),
        ({"architecture": "hoper"}, "The nodes have hopper"),
    ):
        message = str(refused(found, Whole(containers=(1,), **wish)))  # type: ignore[arg-type]
        assert message.endswith(f"is free. {there}.")
    for more in ({}, {"min_driver": "999"}, {"min_memory_mib": 1 << 20}):
        there_is = Whole(containers=(1,), product="NVIDIA H100*", **more)
        assert "The nodes have" not in str(refused(found, there_is))


def test_a_full_cluster_says_so() -> None:
    with pytest.raises(NoPlaceError, match="No GPU is free"):
        fleet(machines.dgx1(), n1=[]).rank(TWO)


def test_updates_and_removals() -> None:
    found = fleet(machines.dgx1(), n1=range(8), n2=range(8), n3=[1])
    found.set_free("n1", [0])
    found.set_node("n2", machines.dgx1(), [0, 3])
    found.remove("n1")
    found.remove("n1")
    assert sorted(found.nodes) == ["n2", "n3"]
    assert found.free("n2") == frozenset({0, 3})
    assert found.free("n3") == frozenset({1})
    found.set_node("n3", machines.dgx_h100(), [6, 7])
    assert found.free("n3") == frozenset({6, 7})
    assert names(found, TWO) == ["n3", "n2"]
    found.set_free("n3", [])
    assert names(found, TWO) == ["n2"]
    with pytest.raises(KeyError):
        found.set_free("n1", [])
    with pytest.raises(UnknownGpuError, match="has no GPU 9"):
        found.set_free("n2", [1, 9])
    assert found.free("n2") == frozenset({0, 3})


def test_bad_nodes_are_refused_and_change_nothing() -> None:
    found = fleet(machines.dgx1(), n1=[0, 3])
    with pytest.raises(UnknownGpuError):
        found.set_node("n1", machines.dgx1(), [8])
    with pytest.raises(MachineTooLargeError):
        found.set_node("n1", machines.bridge_pairs(18), range(18))
    assert found.free("n1") == frozenset({0, 3})
    assert names(found, TWO) == ["n1"]


def test_a_node_without_gpus_is_passed_over() -> None:
    found = fleet(machines.dgx1(), n1=[0, 3])
    found.set_node("n2", Machine(name="empty", gpus=(), links=(), paths=()), [])
    assert names(found, TWO) == ["n1"]


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6])
def test_many_nodes_agree_with_choosing_on_each(gpus: int) -> None:
    rng = random.Random(11)
    kinds = [machines.dgx1(), machines.bridge_pairs(), machines.pcie_box(), machines.dgx_h100()]
    found, machine = Fleet(), {}
    for number in range(150):
        free = [gpu for gpu in range(8) if rng.random() < 0.6]
        machine[f"n{number:03}"] = rng.choice(kinds)
        found.set_node(f"n{number:03}", machine[f"n{number:03}"], free)
    for number in range(0, 150, 4):
        found.remove(f"n{number:03}")
    for number in range(1, 150, 4):
        found.set_free(f"n{number:03}", [gpu for gpu in range(8) if rng.random() < 0.6])
    request = Whole(containers=(gpus,), preferred=(NVLINK,))
    ranked = found.rank(request, limit=1000)
    alone = {}
    for name in found.nodes:
        try:
            alone[name] = choose(machine[name], found.free(name), request)
        except NoPlaceError:
            continue
    assert {choice.node: choice.gpus for choice in ranked} == {name: choice.gpus for name, choice in alone.items()}
    order = [(bool(choice.fallback), -choice.busbw_gbps) for choice in ranked]
    assert order == sorted(order)
    assert found.rank(request, limit=5) == ranked[:5]


def test_uuids_make_no_kind_of_node_of_their_own_and_an_empty_kind_is_forgotten() -> None:
    found = Fleet()
    for number in range(6):
        found.set_node(f"n{number}", profiles.load("dgx1-v100", seed=f"{number}"), [number])
    assert len(found.groups) == 1
    found.set_node("n1", profiles.load("dgx-h100"), [0])
    assert len(found.groups) == 2
    for name in list(found.nodes):
        found.remove(name)
    assert len(found.groups) == 0


def test_many_kinds_of_nodes_are_a_group_each_however_often_they_come() -> None:
    found = Fleet()
    kinds = [machines.build("few", paths=[[PathType.SELF]], pcie_gbps=float(kind)) for kind in range(80)]
    for serial in "ab":  # of each server
        for number, kind in enumerate(kinds):
            found.set_node(f"{serial}{number}", msgspec.structs.replace(kind, name=serial), [0])
    assert len(found.groups) == len(kinds)


def test_the_tables_of_many_kinds_are_not_all_kept() -> None:
    gc.collect()
    before = sum(isinstance(found, Tables) for found in gc.get_objects())
    for kind in range(200):
        tables_of(machines.build("few", paths=[[PathType.SELF]], pcie_gbps=200.0 + kind))
    gc.collect()
    assert sum(isinstance(found, Tables) for found in gc.get_objects()) - before <= 64


def test_what_the_caller_said_of_a_node_stays_when_its_machine_changes() -> None:
    found = fleet(machines.dgx1(), n2=range(8))
    found.set_node("n1", machines.dgx1(), range(8), row=3)
    found.set_location("n1", location(zone="z"))
    for machine in (machines.dgx1(), machines.dgx_h100()):
        found.set_node("n1", machine, [0, 1, 2])
        assert (found.free("n1"), found.location("n1")) == (frozenset({0, 1, 2}), location(zone="z"))
        assert [choice.node for choice in found.rank(TWO, eligible=np.array([False, False, False, True]))] == ["n1"]


def test_nodes_are_eligible_by_row_and_none_beyond_the_end_of_the_array_or_without_a_row() -> None:
    found = fleet(machines.dgx1(), none=range(8))
    for name, row in (("n0", 0), ("n2", 2), ("n5", 5)):
        found.set_node(name, machines.dgx1(), range(8), row=row)
    found.set_node("other", machines.dgx_h100(), range(8), row=1)

    def ranked(*eligible: bool) -> list[str]:
        return sorted(choice.node for choice in found.rank(TWO, eligible=np.array(eligible, dtype=np.bool_)))

    assert ranked(True, True, True) == ["n0", "n2", "other"]
    assert ranked(False, False, True) == ["n2"]
    assert ranked(*[True] * 6) == ["n0", "n2", "n5", "other"]
    found.set_node("n5", machines.dgx1(), range(8), row=3)
    found.remove("n0")
    assert ranked(*[True] * 4) == ["n2", "n5", "other"]
    for none in ([], [False] * 9):
        with pytest.raises(NoPlaceError, match="No node is eligible"):
            ranked(*none)


@pytest.mark.parametrize("seed", sampled(range(20)))
def test_rows_names_and_no_limit_on_nodes_agree(seed: int) -> None:
    rng = random.Random(seed)
    found, kinds = Fleet(), [machines.dgx1(), machines.bridge_pairs(), machines.pcie_box()]
    rows = rng.sample(range(90), 60)
    for number, row in enumerate(rows):
        found.set_node(f"n{number}", rng.choice(kinds), rng.sample(range(8), rng.randint(0, 8)), row=row)
    for number in rng.sample(range(60), 15):
        found.remove(f"n{number}")
        found.set_node(f"n{number}", rng.choice(kinds), rng.sample(range(8), rng.randint(0, 8)), row=rows[number])
    eligible = np.array([rng.random() < 0.5 for _ in range(90)])
    names = {f"n{number}" for number, row in enumerate(rows) if eligible[row]}
    request = Whole(containers=(rng.randint(1, 4),), strategy=rng.choice(list(Strategy)))
    ranked = found.rank(request, eligible=eligible, limit=100)
    assert ranked == found.rank(request, eligible=names, limit=100)
    assert ranked == [choice for choice in found.rank(request, limit=100) if choice.node in names]


def refused(found: Fleet, request: Whole, **how: Any) -> NoPlaceError:
    with pytest.raises(NoPlaceError) as caught:
        found.rank(request, **how)
    return caught.value


@pytest.mark.parametrize(
    ("request_", "stable"),
    [
        (Whole(containers=(2, 2), required=(NVLINK,)),
         "No place for 4 GPUs with nvlink: no eligible node has such a free set."),
        (Whole(containers=(9,)),
         "No place for 9 GPUs: no node of this cluster has such a set, even if all its GPUs are free."),
        (Whole(containers=(8,), required=(NUMA,)),
         "No place for 8 GPUs with same-numa: no node of this cluster has such a set, even if all its GPUs are free."),
        (Whole(containers=(1,), product="GB200"),
         "No place for 1 GPU of product GB200: no node of this cluster has such a set, even if all its GPUs are free."),
        (Whole(containers=(4,), exclude=(0, 1, 2, 3, 4)),
         "No place for 4 GPUs other than 0, 1, 2, 3, 4: "
         "no node of this cluster has such a set, even if all its GPUs are free."),
        (Whole(containers=(1,), include=(8,)),
         "No place for 1 GPU with GPU 8 among them: "
         "no node of this cluster has such a set, even if all its GPUs are free."),
        (Whole(containers=(4,), min_busbw_gbps=80),
         "No place for 4 GPUs with at least 80 GB/s of bus bandwidth: no eligible node has such a free set."),
        (Whole(containers=(4,), min_busbw_gbps=81),
         "No place for 4 GPUs with at least 81 GB/s of bus bandwidth: "
         "no node of this cluster has such a set, even if all its GPUs are free."),
        (Whole(containers=(0,)), "GPUs per container: 0. Request at least 1 GPU in each container."),
    ],
)  # fmt: skip
def test_the_stable_text_does_not_change_as_gpus_come_and_go(request_: Whole, stable: str) -> None:
    found = fleet(machines.dgx1(), n1=[0], n2=[])
    for free in ([0, 1, 2], [], [5, 6]):
        found.set_free("n2", free)
        for eligible in (None, ["n1"], []):
            assert refused(found, request_, eligible=eligible).stable == stable


def test_a_refusal_that_need_not_explain_says_the_stable_text_alone() -> None:
    found = fleet(machines.dgx1(), n1=[0])
    short, long = refused(found, TWO, explain=False), refused(found, TWO)
    assert str(short) == short.stable == long.stable == "No place for 2 GPUs: no eligible node has such a free set."
    assert str(long) == f"{short} Most GPUs on one node: 1 free on n1."


def test_a_copy_stays_as_it_was_while_nodes_come_and_go() -> None:
    live = fleet(machines.dgx1(), n1=[0, 1], n2=[2, 3], n3=[4])
    copied = live.copied({"n1", "n2"})
    copied.set_free("n2", range(8))
    live.remove("n1")
    live.set_node("n0", machines.dgx1(), range(8))
    live.set_free("n2", [])
    assert names(live, TWO) == ["n0"]
    assert names(copied, TWO) == ["n2", "n1"]
    assert {name: set(copied.free(name)) for name in copied.nodes} == {"n1": {0, 1}, "n2": set(range(8)), "n3": {4}}
    copied.remove("n2")
    assert sorted(live.nodes) == ["n0", "n2", "n3"], "what happens to the copy does not happen to the original"
