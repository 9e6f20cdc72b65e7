"""What is kept of evictions, also if the clock of the leader that noted them was ahead, or is set back."""

from __future__ import annotations

from dradriver.api.claims.evicted_workloads import Evicted
from dradriver.queue.eviction_record import EvictionRecord


def test_an_eviction_in_the_future_counts_as_of_the_first_time_that_it_is_looked_at() -> None:
    record = EvictionRecord()
    record.restore([Evicted(7200.0, "uid-former", "default/Job/former")])
    record.add(Evicted(3600.0, "uid-own", "default/Job/own"))
    for now in (100.0, 130.0):
        record.keep(since=0.0, now=now)
        assert record.former(since=0.0) == [100.0]
        assert record.by_lineage(since=0.0) == {"default/Job/former": [100.0], "default/Job/own": [100.0]}
    record.keep(since=101.0, now=161.0)
    assert record.all() == []


def test_evictions_before_a_time_are_forgotten_and_others_stay_as_they_are() -> None:
    record = EvictionRecord()
    kept = Evicted(50.0, "uid-b", "default/Job/b")
    record.restore([Evicted(10.0, "uid-a", "default/Job/a"), kept])
    record.keep(since=20.0, now=60.0)
    assert record.all() == [kept]
    assert record.former(since=0.0) == [50.0]


def test_an_eviction_of_a_former_leader_that_this_one_repeats_or_takes_back_is_no_former_one_any_more() -> None:
    record = EvictionRecord()
    record.restore([Evicted(10.0, "uid-a", "default/Job/a"), Evicted(20.0, "uid-b", "default/Job/b")])
    record.add(Evicted(30.0, "uid-a", "default/Job/a"))
    assert record.former(since=0.0) == [20.0]
    record.remove("uid-a")
    record.remove("uid-b")
    assert record.former(since=0.0) == []
    assert record.all() == []
