"""The choice on one machine, trap by trap."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.choice.numbering import UnknownGpuError
from dradriver.allocator.request import Choice, Constraint, Level, NoPlaceError, Whole
from dradriver.allocator.set_policies import POLICIES
from dradriver.allocator.sets.tables import MachineTooLargeError
from dradriver.topology.machine import Machine, PathType
from tests.fakes import machines

NVLINK, NUMA = Constraint.NVLINK, Constraint.SAME_NUMA
ROOT, SWITCH = Constraint.SAME_PCIE_ROOT, Constraint.SAME_PCIE_SWITCH


def ask(
    machine: Machine,
    free: list[int] | range,
    *containers: int,
    required: tuple[Constraint, ...] = (),
    preferred: tuple[Constraint, ...] = (),
) -> Choice:
    return choose(machine, free, Whole(containers=containers, required=required, preferred=preferred))


def four_pairs(*, numa: tuple[int | None, ...] = (0,) * 8) -> Machine:
    """Four bridged pairs on one socket (k8s-device-plugin issue 1193)."""
    return machines.build(
        "four-pairs",
        paths=machines.nested((range(8),), (PathType.SELF,), across=PathType.NODE),
        links={(gpu, gpu + 1): 4 for gpu in range(0, 8, 2)},
        numa=numa,
        capability="8.0",
    )


def two_pairs() -> Machine:
    """Pairs 0-1 and 2-3, each on a NUMA node of its own (go-gpuallocator issue 214)."""
    return machines.build(
        "two-pairs",
        paths=machines.nested(((0, 0, 1, 1),), (PathType.PHB,), across=PathType.SYS),
        links={(0, 1): 2, (2, 3): 2},
        numa=(0, 0, 1, 1),
    )


def test_the_example_of_the_design() -> None:
    choice = ask(machines.dgx1(), [0, 1, 4], 2, required=(NVLINK,))
    assert choice == Choice(
        gpus=(0, 4),
        containers=((0, 4),),
        ring=(0, 4),
        busbw_gbps=40.0,
        bandwidth_gbps=50.0,
        level=Level.NVLINK,
        score=100,
    )


@pytest.mark.parametrize(
    ("free", "gpus", "chosen"),
    [
        ([0, 1, 2, 6], 2, (1, 2)),
        ([0, 2, 3, 6, 7], 4, (2, 3, 6, 7)),
        (range(8), 4, (0, 1, 2, 3)),
        ([1, *range(4, 8)], 4, (4, 5, 6, 7)),
    ],
)
def test_sets_on_dgx1_that_a_plain_sum_of_links_gets_wrong(free: list[int], gpus: int, chosen: tuple[int, ...]) -> None:
    assert ask(machines.dgx1(), free, gpus).gpus == chosen


def test_a_wide_pair_next_to_a_good_quad_yields_four_real_gpus() -> None:
    links = {(0, 1): 12}
    paths = machines.nested(((0, 1, 2, 2, 2, 2),), (PathType.PIX,), across=PathType.SYS)
    machine = machines.build("padding", paths=paths, links=links, pcie_gbps=24.0, capability="8.0")
    assert ask(machine, range(6), 4).gpus == (2, 3, 4, 5)


def test_a_machine_where_all_pairs_are_equal_and_bad() -> None:
    machine = machines.build("flat", paths=machines.nested((range(5),), (PathType.SELF,), across=PathType.SYS))
    assert ask(machine, range(5), 3).gpus == (0, 1, 2)


def test_unknown_numa_refuses_same_numa_and_only_that() -> None:
    machine = four_pairs(numa=(None,) * 8)
    for gpus in (1, 2):
        with pytest.raises(NoPlaceError, match="does not report the NUMA node"):
            ask(machine, range(8), gpus, required=(NUMA,))
    assert ask(machine, range(8), 2, preferred=(NUMA,)).fallback == (NUMA,)


def test_where_some_numa_nodes_are_known_only_those_gpus_are_taken() -> None:
    machine = four_pairs(numa=(None, None, None, 0, None, None, None, None))
    assert {ask(machine, range(8), 1, required=(NUMA,)).gpus for _ in range(200)} == {(3,)}
    with pytest.raises(NoPlaceError, match=r"largest free set with same-numa has 1 GPU \(3\)"):
        ask(machine, range(8), 2, required=(NUMA,))


def test_two_equal_numa_nodes_always_give_the_same_answer() -> None:
    assert {ask(machines.dgx_h100(), range(8), 4).gpus for _ in range(200)} == {(0, 1, 2, 3)}


def test_one_gpu_with_nvlink_needs_a_gpu_that_has_links_with_any_holder_of_its_peer() -> None:
    machine = machines.build(
        "mixed", paths=machines.nested((range(3),), (PathType.SELF,), across=PathType.PHB), links={(0, 1): 4}
    )
    assert ask(machine, [1, 2], 1, required=(NVLINK,)).gpus == (1,)
    assert ask(machine, [1, 2], 1).gpus == (1,)
    with pytest.raises(NoPlaceError, match="No free GPU has nvlink"):
        ask(machine, [2], 1, required=(NVLINK,))
    with pytest.raises(NoPlaceError, match="no such set, even if all its GPUs are free"):
        ask(machines.pcie_box(), range(8), 1, required=(NVLINK,))


def test_single_gpus_fill_broken_pairs_first() -> None:
    machine = four_pairs()
    free = set(range(8))
    for _ in range(4):
        free -= set(ask(machine, sorted(free), 1).gpus)
    for _ in range(2):
        choice = ask(machine, sorted(free), 2, required=(NVLINK,))
        free -= set(choice.gpus)
    assert not free


@pytest.mark.parametrize("build", [machines.dgx1, machines.bridge_pairs])
def test_a_single_gpu_never_breaks_a_pair_while_a_broken_one_is_free(build: Callable[[], Machine]) -> None:
    machine = build()
    most = max(map(max, machine.links))

    def pairs(free: list[int]) -> int:
        """Most disjoint best pairs among the free GPUs."""
        if len(free) < 2:
            return 0
        first, *rest = free
        with_first = [
            1 + pairs([gpu for gpu in rest if gpu != other]) for other in rest if machine.links[first][other] == most
        ]
        return max([pairs(rest), *with_first])

    for mask in range(1, 256):
        free = [gpu for gpu in range(8) if mask >> gpu & 1]
        (taken,) = ask(machine, free, 1).gpus
        kept = max(pairs([gpu for gpu in free if gpu != other]) for other in free)
        assert pairs([gpu for gpu in free if gpu != taken]) == kept


def test_the_other_pair_is_taken_where_one_is_broken() -> None:
    assert ask(two_pairs(), [1, 2, 3], 2, required=(NVLINK,)).gpus == (2, 3)


def test_two_broken_pairs_are_refused_or_taken_as_asked() -> None:
    with pytest.raises(
        NoPlaceError,
        match=r"2 GPUs with nvlink: .* The largest free set with nvlink has 1 GPU \(1\). Without nvlink, 2",
    ):
        ask(two_pairs(), [1, 3], 2, required=(NVLINK,))
    choice = ask(two_pairs(), [1, 3], 2, preferred=(NVLINK,))
    assert (choice.gpus, choice.fallback, choice.level) == ((1, 3), (NVLINK,), Level.NODE)


def test_what_is_left_decides_among_equals() -> None:
    # both quads of the bridge box have pairs of 240; taking the rest of the broken half keeps the whole one
    assert ask(machines.bridge_pairs(), [2, 3, 4, 5, 6, 7], 2).gpus == (2, 3)
    assert ask(machines.bridge_pairs(), [0, 1, 2, 3, 4, 5], 2).gpus == (4, 5)


def test_numa_then_nics_then_numbers_decide_among_the_rest() -> None:
    assert ask(machines.dgx_h100(), [0, 4, 5], 2).gpus == (4, 5)
    far, near = PathType.SYS, PathType.PIX
    machine = machines.build(
        "nics", paths=machines.nested((range(3),), (far,), across=PathType.PHB), nic_paths=[(far, near, near)]
    )
    assert ask(machine, range(3), 2).gpus == (1, 2)


def test_the_ladder_keeps_the_first_rung_that_is_reached() -> None:
    machine = machines.bridge_pairs()
    assert ask(machine, range(8), 2, preferred=(NVLINK, NUMA)).fallback == ()
    second = ask(machine, [1, 2, 4], 2, preferred=(NVLINK, NUMA))
    assert (second.gpus, second.fallback) == ((1, 2), (NVLINK,))
    none = ask(machine, [1, 4], 2, preferred=(NVLINK, NUMA))
    assert (none.gpus, none.fallback) == ((1, 4), (NVLINK, NUMA))


def test_a_rung_counts_more_than_bandwidth() -> None:
    choice = ask(machines.dgx1(), [2, 3, 6, 7], 2, preferred=(NUMA, NVLINK))
    assert choice.gpus in ((2, 3), (6, 7))
    across = ask(machines.dgx1(), [0, 1, 4], 2, preferred=(NUMA,))
    assert (across.gpus, across.busbw_gbps) == ((0, 1), 20.0)


@pytest.mark.parametrize(
    ("required", "gpus", "chosen"),
    [
        ((SWITCH,), 4, (0, 1, 2, 3)),
        ((ROOT,), 4, (0, 1, 2, 3)),
        ((ROOT, NUMA), 2, (0, 1)),
        ((SWITCH,), 5, None),
        ((ROOT,), 5, None),
    ],
)
def test_pcie_constraints(required: tuple[Constraint, ...], gpus: int, chosen: tuple[int, ...] | None) -> None:
    if chosen is None:
        with pytest.raises(NoPlaceError, match=r"has 4 GPUs \(0, 1, 2, 3\)"):
            ask(machines.pcie_box(), range(8), gpus, required=required)
    else:
        assert ask(machines.pcie_box(), range(8), gpus, required=required).gpus == chosen


def test_where_roots_are_unknown_the_host_bridge_tells() -> None:
    assert ask(machines.dgx1(), range(8), 4, required=(ROOT,)).gpus == (0, 1, 2, 3)
    assert ask(machines.dgx1(), range(8), 2, required=(SWITCH,)).gpus == (2, 3)  # of the switch pairs the best linked


@pytest.mark.parametrize(
    ("free", "containers", "message"),
    [
        (range(8), (9,), "9 GPUs: .* The machine has 8 GPUs"),
        ([0, 5], (2, 1), r"3 GPUs: .* 2 of 8 GPUs are free \(0, 5\)"),
        ([], (1,), "1 GPU: .* 0 of 8 GPUs are free"),
        (range(8), (), "Request at least 1 GPU"),
        (range(8), (2, 0), "GPUs per container: 2, 0. Request at least 1"),
        (range(8), (-1,), "Request at least 1 GPU"),
    ],
)
def test_refusals_say_why(free: list[int], containers: tuple[int, ...], message: str) -> None:
    with pytest.raises(NoPlaceError, match=message):
        ask(machines.dgx1(), free, *containers)


def test_unknown_gpus_and_machines_that_are_too_large_or_empty_are_refused() -> None:
    with pytest.raises(UnknownGpuError, match="has no GPU 8, 9"):
        ask(machines.dgx1(), [0, 9, 8], 1)
    with pytest.raises(MachineTooLargeError, match="18 GPUs, and at most 16"):
        ask(machines.bridge_pairs(18), range(18), 1)
    with pytest.raises(NoPlaceError, match="The machine has 0"):
        ask(Machine(name="empty", gpus=(), links=(), paths=()), [], 1)


def test_of_a_driver_that_is_too_old_the_versions_are_told() -> None:
    machine = msgspec.structs.replace(machines.dgx1(), driver_version="580.95.05", cuda_version="13.0")
    with pytest.raises(NoPlaceError) as caught:
        choose(machine, range(8), Whole(containers=(2,), min_driver="570", min_cuda="13.5"))
    assert str(caught.value) == (
        "No place for 2 GPUs on driver 570 and CUDA 13.5 or later: the machine has no such set, even if all its GPUs "
        "are free. 0 of 8 free GPUs match the request. The machine has driver 580.95.05, which supports CUDA 13.0."
    )


@pytest.mark.parametrize(
    ("request_", "stable"),
    [
        (Whole(containers=(2,), required=(NVLINK,)),
         "No place for 2 GPUs with nvlink: the machine has no such free set."),
        (Whole(containers=(9,)), "No place for 9 GPUs: the machine has no such set, even if all its GPUs are free."),
        (Whole(containers=(2,), product="GB200"),
         "No place for 2 GPUs of product GB200: the machine has no such set, even if all its GPUs are free."),
        (Whole(containers=()), "GPUs per container: none. Request at least 1 GPU in each container."),
    ],
)  # fmt: skip
def test_the_stable_text_does_not_change_as_gpus_come_and_go(request_: Whole, stable: str) -> None:
    for free in ([], [0], [0, 5]):
        with pytest.raises(NoPlaceError) as caught:
            choose(machines.dgx1(), free, request_)
        assert caught.value.stable == stable


def test_numbers_of_a_machine_that_lost_gpus_are_its_own() -> None:
    whole = machines.dgx1()
    kept = [0, 3, 4, 7]
    machine = Machine(
        name="lost",
        gpus=tuple(whole.gpus[gpu] for gpu in kept),
        links=tuple(tuple(whole.links[a][b] for b in kept) for a in kept),
        paths=tuple(tuple(whole.paths[a][b] for b in kept) for a in kept),
        link_gbps=20.0,
    )
    choice = ask(machine, [3, 4, 7], 2)
    assert choice.gpus == (4, 7)
    assert ask(machine, kept, 2, 2).ring == (0, 3, 7, 4)


@pytest.mark.parametrize(
    ("build", "free", "level", "score"),
    [
        (machines.dgx1, [0, 1, 2, 3], Level.NVLINK, 100),
        (machines.dgx1, [0, 1, 2, 6], Level.NODE, 25),
        (machines.pcie_box, [0, 1, 2, 3], Level.PCIE_SWITCH, 100),
        (machines.pcie_box, [0, 1, 2, 4], Level.NODE, 41),
        (machines.bridge_pairs, [0, 1, 2, 3], Level.PCIE_ROOT, 100),
    ],
)
def test_level_and_score_of_four(build: Callable[[], Machine], free: list[int], level: Level, score: int) -> None:
    choice = ask(build(), free, 4)
    assert (choice.level, choice.score) == (level, score)


def test_a_single_gpu_has_no_bandwidth_and_a_full_score() -> None:
    choice = ask(machines.dgx1(), [5], 1)
    assert (choice.ring, choice.busbw_gbps, choice.bandwidth_gbps, choice.score) == ((5,), 0, 0, 100)
    assert choice.level is Level.NVLINK
    assert ask(machines.pcie_box(), [5], 1).level is Level.PCIE_SWITCH


def test_containers_get_their_parts_in_order() -> None:
    choice = ask(machines.dgx1(), range(8), 2, 1, 1)
    assert [len(part) for part in choice.containers] == [2, 1, 1]
    assert sorted(gpu for part in choice.containers for gpu in part) == list(choice.gpus) == [0, 1, 2, 3]
    assert machines.DGX1_LINKS[tuple(sorted(choice.containers[0]))] == 2  # type: ignore[index]


def test_policies_are_hard_but_for_best_effort() -> None:
    hard = {"nvlink": (NVLINK,), "single-numa": (NUMA,), "pcie": (ROOT,), "linked": (NVLINK,)}
    assert dict(POLICIES) == {"best-effort": (), **hard}
