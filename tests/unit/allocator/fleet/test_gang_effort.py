"""How much a search for a gang's places may cost, and what there is once that is spent."""

from __future__ import annotations

import pytest

from dradriver.allocator import NoPlaceError, Role, Whole, place_gang
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_effort import MOST_EVALUATIONS, Effort, efforts
from dradriver.allocator.gang_request import GangRequest
from dradriver.allocator.request import LazyNoPlaceError
from dradriver.topology.network_levels import location
from tests.fakes import machines

FIVE, FOUR = Whole(containers=(5,)), Whole(containers=(4,))


def leaves(*sizes: int) -> Fleet:
    """Return empty nodes of eight GPUs, so many on each leaf."""
    fleet = Fleet()
    for leaf, nodes in enumerate(sizes):
        for number in range(nodes):
            name = f"{leaf}-{number}"
            fleet.set_node(name, machines.dgx_h100(), range(8), row=len(fleet.nodes))
            fleet.set_location(name, location(leaf=str(leaf)))
    return fleet


def gang(fives: int, fours: int, *, near: str = "") -> GangRequest:
    return GangRequest(pod=FIVE, pods=fives, roles=(Role(pod=FOUR, pods=fours),), near=near, near_required=bool(near))


def test_a_spent_effort_gives_a_greedy_plan_in_the_narrowest_part_that_has_most_free() -> None:
    effort = Effort(0)
    choice = place_gang(leaves(3, 4, 3), gang(2, 3), effort=effort)
    assert {pod.node[0] for pod in choice.pods} == {"1"}
    assert effort.gave_up
    assert choice == place_gang(leaves(3, 4, 3), gang(2, 3), effort=Effort(0))


def test_several_calls_spend_one_effort() -> None:
    effort = Effort(10_000_000)
    while not effort.is_spent:
        with pytest.raises(NoPlaceError):
            place_gang(leaves(2, 2, 2), gang(2, 1, near="leaf"), effort=effort)
    with pytest.raises(NoPlaceError, match="The search ended at its limit") as caught:
        place_gang(leaves(2, 2, 2), gang(2, 1, near="leaf"), effort=effort)
    assert caught.value.stable.endswith(
        "The search ended at its limit before it had tried every plan. Fewer different requests need less search."
    )


def test_equal_pods_cost_nothing() -> None:
    effort = Effort(0)
    place_gang(leaves(2, 2), GangRequest(pod=FIVE, pods=4), effort=effort)
    assert not effort.is_spent


def test_a_part_is_spent_by_itself_and_of_the_whole() -> None:
    effort = Effort(100)
    part = effort.fraction(2)
    assert part.spend(50)
    assert not part.spend(10)
    assert not effort.is_spent
    assert effort.spend(40)
    assert not effort.spend(1)


def test_a_part_is_spent_when_the_whole_is() -> None:
    effort = Effort(100)
    part = effort.fraction(2)
    effort.spend(101)
    assert part.is_spent
    assert not part.spend(1)


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_the_last_try_may_spend_what_an_only_try_may_and_the_others_as_much_together(tries: int) -> None:
    *avoiding, last = efforts(tries)
    assert len(avoiding) == tries - 1
    for effort in avoiding:
        assert effort.left == MOST_EVALUATIONS // len(avoiding)
        effort.spend(effort.left)
    assert last.left == MOST_EVALUATIONS


EIGHT_SHAPES = ((4, 1), (3, 3), (4, 2), (3, 2), (3, 3), (2, 3), (2, 2), (2, 1))
"""GPUs and pods: 48 GPUs, which six nodes hold if sizes are mixed well. Largest first takes a seventh."""


def eight_shapes(*, max_nodes: int, near: str = "") -> GangRequest:
    roles = [
        Role(pod=Whole(containers=(gpus,)), pods=pods, needs=(number,))
        for number, (gpus, pods) in enumerate(EIGHT_SHAPES)
    ]
    first, *others = roles
    return GangRequest(
        pod=first.pod, pods=first.pods, needs=first.needs, roles=tuple(others),
        max_nodes=max_nodes, near=near, near_required=bool(near),
    )  # fmt: skip


def test_many_shapes_find_the_few_nodes_that_hold_them() -> None:
    choice = place_gang(leaves(8, 8), eight_shapes(max_nodes=6))
    assert len(choice.nodes) == 6


def test_many_parts_of_the_network_leave_enough_to_try_every_plan_in_one() -> None:
    """Role after role finds no place on any of 40 leaves, and may cost more than a look may."""
    choice = place_gang(leaves(*[6] * 40), eight_shapes(max_nodes=6, near="leaf"))
    assert len(choice.nodes) == 6


def test_why_there_is_no_place_does_not_change_with_what_later_tries_spend() -> None:
    effort = Effort()
    with pytest.raises(NoPlaceError) as caught:
        place_gang(leaves(2, 2, 2), gang(2, 1, near="leaf"), effort=effort)
    effort.spend(10 * MOST_EVALUATIONS)
    assert 'Without "near leaf", there is a place.' in str(caught.value)


def test_a_gang_with_a_limit_of_nodes_is_told_what_needs_less_search() -> None:
    with pytest.raises(NoPlaceError, match="Fewer different requests, or a larger max-nodes, need less search"):
        place_gang(leaves(8, 8), eight_shapes(max_nodes=6), effort=Effort(1_000_000))


def test_parts_that_cannot_hold_all_cost_no_search() -> None:
    """Each leaf has GPUs for all, and room for either kind alone."""
    effort = Effort(1_000_000)
    with pytest.raises(NoPlaceError):
        place_gang(leaves(*[3] * 30), gang(3, 4, near="leaf"), effort=effort)
    assert not effort.is_spent


def test_why_is_found_out_once_and_only_when_it_is_read() -> None:
    asked = 0

    def explain() -> NoPlaceError:
        nonlocal asked
        asked += 1
        return NoPlaceError("no room", request="3 pods", nearest="2 fit")

    error = LazyNoPlaceError(explain)
    assert asked == 0
    assert (str(error), error.stable, str(error), asked) == (
        "No place for 3 pods: no room. 2 fit.",
        "No place for 3 pods: no room.",
        "No place for 3 pods: no room. 2 fit.",
        1,
    )
