"""Who gets GPUs reserved, which, who may run there meanwhile, and when it ends."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.queue.reservation_rules import (
    Blocked,
    Candidate,
    Reservation,
    Step,
    Terms,
    Use,
    best,
    counted,
    due,
    expected_work,
    has_used_up,
    judge,
    may_run,
    move,
    readiness,
    reason,
    reserve,
    runs_out_at,
    seen,
)

TERMS = Terms(bounded_wait_s=100, idle_s=50, short_s=10)


def blocked(who: str, *, tenant: str = "", partition: str = "", since: float = 0) -> Blocked:
    return Blocked(who=who, tenant=tenant or who, partition=partition, since=since)


def place(node: str, *uses: Use, gpus: int = 2) -> Candidate:
    return Candidate(gpus=tuple((node, f"gpu-{number}") for number in range(gpus)), uses=uses)


def until(ends_at: float | None, *, gpus: int = 1, work: float = 0) -> Use:
    return Use(who=f"pod-{ends_at}", gpus=gpus, ends_at=ends_at, work_gpu_s=work)


def held(*uses: Use, now: float = 0) -> Reservation:
    return reserve(blocked("job"), place("a", *uses), now)


def test_the_first_that_was_blocked_for_long_enough_gets_one() -> None:
    waiting = [blocked("young", since=50), blocked("old"), blocked("older")]
    assert due(waiting, [], TERMS, 99) == []
    assert [each.who for each in due(waiting, [], TERMS, 100)] == ["old"]
    assert [each.who for each in due(waiting, [], TERMS, 150)] == ["young"]


def test_after_each_that_came_to_nothing_the_next_is_due_after_twice_as_long() -> None:
    waiting = [msgspec.structs.replace(blocked("a"), failed=2)]
    assert due(waiting, [], TERMS, 399) == []
    assert due(waiting, [], TERMS, 400) == waiting


def test_one_a_partition_and_one_a_tenant() -> None:
    waiting = [
        blocked("a", tenant="x", partition="1"),
        blocked("b", tenant="x", partition="2"),
        blocked("c", tenant="y", partition="2"),
    ]
    assert [each.who for each in due(waiting, [], TERMS, 100)] == ["a", "c"]
    has = reserve(waiting[0], place("n"), 0)
    assert [each.who for each in due(waiting, [has], TERMS, 100)] == ["c"]


def test_the_set_that_is_free_first_by_declared_ends_is_reserved() -> None:
    sets = [place("a", until(90)), place("b", until(20), until(80)), place("c", until(None, work=1))]
    assert best(sets, 10) == sets[1]
    assert best([], 10) is None


def test_of_sets_free_at_one_time_that_with_least_idle_is_reserved() -> None:
    sets = [place("a", until(60)), place("b", until(60), until(60))]
    assert [readiness(each, 0) for each in sets] == [(0, 60, 60), (0, 60, 0)]
    assert best(sets, 0) == sets[1]
    assert best([place("b"), place("a")], 0) == place("a")  # and by name, at last


def test_where_all_have_endless_ones_the_least_work_decides() -> None:
    sets = [place("a", until(None, work=900)), place("b", until(None, work=300), until(5000))]
    assert best(sets, 0) == sets[1]
    assert expected_work(4, 600) == 2400


def test_others_run_there_only_if_they_end_before_it() -> None:
    at_60 = held(until(60))
    assert may_run(at_60, TERMS, 0, ends_at=60)
    assert not may_run(at_60, TERMS, 0, ends_at=61)
    assert not may_run(at_60, TERMS, 0, ends_at=None)


def test_while_the_time_is_unknown_only_short_ones_run_there_and_they_do_not_follow_each_other_for_ever() -> None:
    unknown = held(until(None))
    assert may_run(unknown, TERMS, 100, ends_at=110)
    assert not may_run(unknown, TERMS, 100, ends_at=111)
    known = seen(unknown, place("a", until(110)))  # the endless one is gone, a short one is there
    assert (known.expected_at, known.endless) == (110, ())
    assert not may_run(known, TERMS, 105, ends_at=115)
    assert seen(known, place("a", until(110))) is known


def test_idle_gpus_are_counted_until_the_bound_and_then_it_moves_once_or_ends() -> None:
    current, alternative = place("a", until(None, work=500)), place("b", until(300))
    reservation = held(*current.uses)
    assert runs_out_at(reservation, 1, TERMS) == 100
    assert runs_out_at(reservation, 0, TERMS) is None
    early = counted(reservation, 1, 99)
    assert judge(early, current=current, alternative=alternative, terms=TERMS, now=99) == (Step.KEEP, "")
    late = counted(early, 1, 100)
    assert late.idle_gpu_s == 100
    step, why = judge(late, current=current, alternative=alternative, terms=TERMS, now=100)
    assert (step, why) == (Step.MOVE, "100 GPU-seconds stood idle, at most 100 may")
    assert judge(late, current=alternative, alternative=current, terms=TERMS, now=100)[0] is Step.END
    assert judge(late, current=current, alternative=None, terms=TERMS, now=100)[0] is Step.END
    moved = move(late, alternative, 100)
    assert (moved.gpus, moved.expected_at, moved.endless) == (alternative.gpus, 300, ())
    assert (moved.idle_gpu_s, moved.moved) == (0, 1)
    spent = counted(moved, 2, 200)
    assert judge(spent, current=current, alternative=alternative, terms=TERMS, now=200)[0] is Step.END


@pytest.mark.parametrize("counts", [1, 3, 7, 1000])
def test_an_account_is_used_up_when_its_timer_rings_however_often_it_was_counted(counts: int) -> None:
    reservation = held(until(None), now=1.7e9)
    rings_at = runs_out_at(reservation, 1, TERMS)
    assert rings_at is not None
    for number in range(1, counts + 1):
        assert not has_used_up(reservation, TERMS)
        reservation = counted(reservation, 1, 1.7e9 + (rings_at - 1.7e9) * number / counts)
    assert has_used_up(reservation, TERMS)


def test_a_lost_node_moves_it_without_counting() -> None:
    reservation = counted(held(until(300)), 1, 40)
    options = {"current": place("a", until(300)), "terms": TERMS, "now": 40.0, "lost": [("a", "gpu-1")]}
    step, why = judge(reservation, alternative=place("b", until(400)), **options)  # type: ignore[arg-type]
    assert (step, why) == (Step.MOVE, "reserved GPUs are gone")
    assert judge(reservation, alternative=None, **options)[0] is Step.END  # type: ignore[arg-type]
    moved = move(reservation, place("b", until(400)), 40, for_cost=False)
    assert (moved.moved, moved.idle_gpu_s) == (0, 40)


def test_it_ends_where_it_is_not_needed() -> None:
    step, why = judge(held(), current=place("a"), alternative=None, terms=TERMS, now=0, is_needed=False)
    assert step is Step.END
    assert "nobody waits" in why


def test_the_reason_says_when_or_who_is_in_the_way() -> None:
    assert reason(held(until(60))) == "2 GPUs on a are reserved for this workload and free by 1970-01-01 00:01 UTC."
    said = reason(held(until(None), until(9)))
    assert "It is not known when they are free: no max-duration on pod-None." in said
    many = reserve(blocked("job"), Candidate(gpus=tuple((f"n{number}", "g") for number in range(5))), 0)
    assert "on n0, n1, n2 and 2 more are" in reason(many)


def test_it_survives_being_written_down() -> None:
    reservation = counted(held(until(None)), 1, 7)
    assert msgspec.json.decode(msgspec.json.encode(reservation), type=Reservation) == reservation
