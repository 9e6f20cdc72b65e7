"""What a request may demand beyond constraints, which of equal sets it takes, and how it is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.choice.set_order import cohesion
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import Choice, Constraint, NoPlaceError, Strategy, Weights, Whole
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology.machine import Machine, PathType
from tests.fakes import machines


def ask(machine: Machine, free: list[int] | range, gpus: int, **wishes: Any) -> Choice:
    return choose(machine, free, Whole(containers=(gpus,), **wishes))


def mixed() -> Machine:
    """Four GPUs of two products; the second and the last have more memory."""
    machine = machines.build(
        "mixed", paths=machines.nested((range(4),), (PathType.SELF,), across=PathType.PHB), capability="8.0"
    )
    kinds = [("NVIDIA A100-PCIE-40GB", 40960), ("NVIDIA A100 80GB PCIe", 81920)] * 2
    gpus = tuple(
        msgspec.structs.replace(gpu, product=product, memory_mib=memory, architecture="ampere")
        for gpu, (product, memory) in zip(machine.gpus, kinds, strict=True)
    )
    return msgspec.structs.replace(machine, gpus=gpus)


def whole_links() -> Machine:
    """Two islands of three directly linked GPUs."""
    links = {(a, b): 2 for island in ((0, 1, 2), (3, 4, 5)) for a in island for b in island if a < b}
    return machines.build(
        "islands", paths=machines.nested((range(6),), (PathType.SELF,), across=PathType.PHB), links=links
    )


def test_the_weakest_link_is_at_least_as_wide_as_demanded() -> None:
    for least, rate in ((1, 50), (25, 50), (26, 50), (50, 50)):
        assert ask(machines.dgx1(), range(8), 2, min_bandwidth_gbps=least).bandwidth_gbps == rate
    with pytest.raises(NoPlaceError, match=r"highest bandwidth between neighbours .* is 25 GB/s \(0, 1\)"):
        ask(machines.dgx1(), [0, 1], 2, min_bandwidth_gbps=26)
    assert ask(machines.dgx1(), [5], 1, min_bandwidth_gbps=1000).gpus == (5,)


def test_predicted_bandwidth_is_at_least_as_much_as_demanded() -> None:
    assert ask(machines.dgx1(), range(8), 4, min_busbw_gbps=80).busbw_gbps == 80
    with pytest.raises(NoPlaceError, match=r"4 GPUs with at least 81 GB/s of bus bandwidth: .* The highest .* 80 GB/s"):
        ask(machines.dgx1(), range(8), 4, min_busbw_gbps=81)
    with pytest.raises(NoPlaceError, match=r"20 GB/s \(0, 1, 2, 6\)"):
        ask(machines.dgx1(), [0, 1, 2, 6], 4, min_busbw_gbps=30)
    assert ask(machines.dgx1(), [5], 1, min_busbw_gbps=1000).gpus == (5,)


def test_a_ladder_falls_to_where_the_bandwidth_is_enough() -> None:
    # the only free pair on one NUMA node has one link, the pair across has two
    wishes = {"preferred": (Constraint.SAME_NUMA,)}
    assert ask(machines.dgx1(), [0, 1, 4], 2, **wishes).gpus == (0, 1)
    across = ask(machines.dgx1(), [0, 1, 4], 2, min_busbw_gbps=40, **wishes)
    assert (across.gpus, across.fallback) == ((0, 4), (Constraint.SAME_NUMA,))


def test_products_are_matched_exactly_or_as_a_glob() -> None:
    assert ask(mixed(), range(4), 2, product="NVIDIA A100 80GB PCIe").gpus == (1, 3)
    assert ask(mixed(), range(4), 2, product="*-40GB").gpus == (0, 2)
    with pytest.raises(
        NoPlaceError, match=r"0 of 4 free GPUs match the request. The machine has NVIDIA A100 80GB PCIe, "
    ):
        ask(mixed(), range(4), 1, product="nvidia a100*")


def test_architecture_and_memory_choose_the_gpus() -> None:
    assert ask(mixed(), range(4), 2, architecture="Ampere", min_memory_mib=80000).gpus == (1, 3)
    with pytest.raises(
        NoPlaceError, match=r"3 GPUs of at least 80000 MiB: .* 2 of 4 free GPUs match the request \(1, 3\)"
    ):
        ask(mixed(), range(4), 3, min_memory_mib=80000)
    with pytest.raises(NoPlaceError, match="The machine has ampere"):
        ask(mixed(), range(4), 1, architecture="hopper")


def test_gpus_to_have_and_to_leave_out() -> None:
    assert ask(machines.dgx1(), range(8), 2, include=(1,)).gpus == (1, 2)
    assert ask(machines.dgx1(), range(8), 2, include=(1, 4)).gpus == (1, 4)
    assert 0 not in ask(machines.dgx1(), range(8), 4, exclude=(0,)).gpus
    with pytest.raises(NoPlaceError, match="GPU 3 is not free"):
        ask(machines.dgx1(), [0, 1, 2], 2, include=(3,))
    with pytest.raises(NoPlaceError, match="no"):
        ask(machines.dgx1(), range(8), 2, include=(0, 1, 2))
    for gpus in range(2, 9):
        for must in range(8):
            assert must in ask(machines.bridge_pairs(), range(8), gpus, include=(must,)).gpus


def test_gpus_outside_one_nvlink_domain_are_bounded() -> None:
    assert ask(whole_links(), range(6), 4, max_cross_nvswitch_gpus=1).gpus == (0, 1, 2, 3)
    with pytest.raises(NoPlaceError, match="largest free set with at most 0 GPUs outside one NVLink domain has 3"):
        ask(whole_links(), range(6), 4, max_cross_nvswitch_gpus=0)
    assert ask(machines.dgx_h100(), range(8), 8, max_cross_nvswitch_gpus=0).gpus == tuple(range(8))


def test_few_numa_nodes_can_go_before_what_is_left() -> None:
    # taking 0 and 4 would keep three equal pairs on each side; a wish for one NUMA node forbids it
    machine = machines.build(
        "eight", paths=machines.nested((range(8),), (PathType.SELF,), across=PathType.PHB), numa=machines.HALVES
    )
    assert ask(machine, [0, 4, 5], 2, prefer_same_numa=True).gpus == (4, 5)
    assert ask(machines.dgx1(), [0, 3, 4], 2, prefer_same_numa=True).gpus == (0, 3)


def test_strategies_on_one_machine() -> None:
    machine = machines.dgx_h100()
    free = [0, 1, 4, 5, 6, 7]
    assert ask(machine, free, 1, strategy=Strategy.FIRST_FIT).gpus == (0,)
    assert ask(machine, free, 1, strategy=Strategy.SPREAD).gpus == (4,)
    assert ask(machine, free, 2, strategy=Strategy.SPREAD).gpus == (4, 5)


@pytest.mark.parametrize(
    ("strategy", "order"),
    [
        (Strategy.BEST_FIT, ["broken", "pair", "whole"]),
        (Strategy.PACK, ["pair", "broken", "whole"]),
        (Strategy.SPREAD, ["whole", "broken", "pair"]),
        (Strategy.FIRST_FIT, ["broken", "pair", "whole"]),
    ],
)
def test_strategies_over_nodes(strategy: Strategy, order: list[str]) -> None:
    fleet = Fleet()
    for name, free in (("whole", range(8)), ("broken", range(3)), ("pair", range(2))):
        fleet.set_node(name, machines.bridge_pairs(), free)
    ranked = fleet.rank(Whole(containers=(1,), strategy=strategy))
    assert [choice.node for choice in ranked] == order


def test_best_fit_keeps_whole_nodes_and_fours_where_all_sets_are_equal() -> None:
    fleet = Fleet()
    for name, free in (("a-whole", range(8)), ("b-four", range(4)), ("c-seven", range(7)), ("d-three", range(3))):
        fleet.set_node(name, machines.dgx_h100(), free)
    one = Whole(containers=(1,))
    assert [choice.node for choice in fleet.rank(one)] == ["c-seven", "d-three", "b-four", "a-whole"]
    fleet.set_node("pairs", machines.bridge_pairs(), [0, 1])  # now there is a pair that is better than others
    assert fleet.rank(one)[0].node == "d-three"


def test_no_strategy_costs_bandwidth() -> None:
    for strategy in Strategy:
        for free in ([0, 1, 2, 6], [0, 2, 3, 6, 7], list(range(8))):
            for gpus in (2, 3, 4):
                plain = ask(machines.dgx1(), free, gpus)
                assert ask(machines.dgx1(), free, gpus, strategy=strategy).busbw_gbps == plain.busbw_gbps


def test_cohesion_is_what_its_formula_says() -> None:
    values = cohesion(tables_of(machines.dgx1()), Weights())
    assert values[0b100001] == pytest.approx(10 + 10 + 5)  # 0-5: no link, two sockets
    assert values[0b10001] == pytest.approx(40 + 10 + 10 + 5)
    assert values[0b1100] == pytest.approx(100)  # 2-3: two links, one switch, one socket
    no_numa = cohesion(tables_of(machines.dgx1()), Weights(numa=0))
    assert no_numa[0b1100] == pytest.approx(80)


def test_weights_decide_among_equals() -> None:
    # by links 0-1, 0-2 and 0-3 are alike; 0-1 shares a switch, 0-2 a NUMA node
    paths = [[PathType.SELF if a == b else PathType.SYS for b in range(4)] for a in range(4)]
    paths[0][1] = paths[1][0] = PathType.PIX
    machine = machines.build(
        "choice", paths=paths, links={(0, 1): 2, (0, 2): 2, (1, 2): 2}, numa=(0, 1, 0, 1), capability="7.0"
    )
    assert ask(machine, [0, 1, 2], 2).gpus == (0, 1)
    assert ask(machine, [0, 1, 2], 2, weights=Weights(pcie=0)).gpus == (0, 2)


def test_alike_memory_is_kept_together() -> None:
    assert ask(mixed(), [0, 1, 3], 2).gpus == (1, 3)


def test_a_fleet_of_mixed_products_takes_the_right_ones() -> None:
    fleet = Fleet()
    fleet.set_node("a", mixed(), range(4))
    fleet.set_node("b", machines.dgx1(), range(8))
    wish = Whole(containers=(2,), product="NVIDIA A100 80GB PCIe")
    assert [(choice.node, choice.gpus) for choice in fleet.rank(wish)] == [("a", (1, 3))]
    with pytest.raises(NoPlaceError, match="Most GPUs of product NVIDIA A100 80GB PCIe on one node: 2 free on a"):
        fleet.rank(Whole(containers=(3,), product="NVIDIA A100 80GB PCIe"))
    with pytest.raises(NoPlaceError, match="No GPU of product GB200 is free"):
        fleet.rank(Whole(containers=(1,), product="GB200"))
    with pytest.raises(NoPlaceError, match=r"The highest bus bandwidth .* is 40 GB/s, on b"):
        fleet.rank(Whole(containers=(2,), min_busbw_gbps=41))
    assert [choice.node for choice in fleet.rank(Whole(containers=(2,), include=(7,)))] == ["b"]


def test_least_bandwidth_is_of_links_with_any_pcie() -> None:
    with pytest.raises(NoPlaceError, match=r"2 GPUs with at least 10 GB/s over NVLink .* No free GPU has"):
        ask(machines.pcie_box(), range(8), 2, min_bandwidth_gbps=10)
    assert ask(machines.pcie_box(), range(8), 2, min_busbw_gbps=10).busbw_gbps >= 10
