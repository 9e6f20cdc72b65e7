"""Orders on the simulated cluster: who starts when, who reserves, and what tenants get."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from dradriver.cli.main import main
from dradriver.cli.simulator import trace
from dradriver.cli.simulator.order_figures import OrderResult, over_seeds
from dradriver.cli.simulator.order_replay import OrderReplay
from dradriver.cli.simulator.orders import ORDERS, SAME_ALONE
from dradriver.cli.simulator.simulated_queue import Blocked, covers, pods
from dradriver.cli.simulator.trace import Job
from tests.effort import sampled
from tests.fakes import machines

HOUR_S = 3600.0


def job(number: int, at: float, gpus: int, lasts: float, *, tenant: int = 0, declared: float | None = None) -> Job:
    return Job(number, at, gpus, lasts, tenant, declared)


def replay(
    jobs: list[Job], order: str, *, nodes: int = 1, weights: tuple[float, ...] = (1.0,), until_s: float | None = None
) -> OrderResult:
    return OrderReplay(
        [machines.dgx_h100()] * nodes, jobs, order=order, weights=weights, communication=0, until_s=until_s
    ).run()


def waits(result: OrderResult) -> dict[str, float]:
    """Longest wait by size."""
    return {each.gpus: each.largest_s for each in result.waits}


def run(*options: str) -> str:
    result = CliRunner().invoke(main, ["simulate", *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("declared", sampled([0.5, 0.0, 1.0], fast=1))
def test_every_job_starts_once_and_no_gpu_is_given_twice(order: str, declared: float) -> None:
    weights = (3.0, 1.0)
    jobs = trace.assigned(trace.drawn(150, gpus=24, load=1.3, seed=4), weights=weights, declared=declared, seed=4)
    result = replay(jobs, order, nodes=3, weights=weights)  # the cluster asserts
    assert result.waits[-1].jobs == 150
    assert 0 < result.utilisation <= 1
    assert result == replay(jobs, order, nodes=3, weights=weights)


def test_fifo_passes_by_and_strict_fifo_does_not() -> None:
    jobs = [job(0, 0, 6, 100), job(1, 1, 8, 10), job(2, 2, 2, 10)]
    assert waits(replay(jobs, "fifo")) == {"2": 0, "5-8": 99, "all": 99}
    assert waits(replay(jobs, "strict fifo")) == {"2": 108, "5-8": 99, "all": 108}


def stream(declared: float | None) -> list[Job]:
    """Jobs of 4 that overlap for ever, and one of 8 among them."""
    small = [job(number, 500 * number, 4, 900, declared=declared) for number in range(40)]
    return [*small[:3], job(100, 1100, 8, 10), *small[3:]]


def test_a_whole_node_is_kept_for_who_is_passed_by() -> None:
    assert waits(replay(stream(None), "fifo"))["5-8"] > 18_000
    assert waits(replay(stream(None), "easy"))["5-8"] == 800  # the one of 4 that began at 1000 ends at 1900
    bounded = waits(replay(stream(None), "ours"))["5-8"]
    assert 1800 < bounded <= 1800 + 900
    assert replay(stream(None), "ours").reservations == 1
    assert 0 < replay(stream(None), "ours").reserved_idle < 0.1


def test_others_run_on_reserved_gpus_if_they_end_before() -> None:
    first = [job(0, 0, 4, 1000, declared=1000), job(1, 1, 8, 10, declared=20)]
    short, long, silent = (job(2, 2, 4, 900, declared=declared) for declared in (998, 999, None))
    assert waits(replay([*first, short], "easy"))["3-4"] == 0
    assert waits(replay([*first, long], "easy"))["3-4"] == 1008
    assert waits(replay([*first, silent], "easy"))["3-4"] == 1008


def test_who_declared_is_ended_then() -> None:
    result = replay([job(0, 0, 8, 100, declared=40), job(1, 1, 8, 10)], "fifo")
    assert (result.ended, waits(result)["5-8"]) == (1, 39)


def test_a_reservation_behind_an_endless_job_ends_after_its_bound() -> None:
    # 7 GPUs stand idle for 8 * 3600 GPU-seconds at most; small ones run there afterwards
    jobs = [job(0, 0, 1, 100 * HOUR_S), job(1, 1, 8, 10), job(2, 2000, 4, 100 * HOUR_S)]
    result = replay(jobs, "ours")
    # it is made after half an hour, and given up 8 / 7 hours later
    assert waits(result)["3-4"] == pytest.approx(1801 + 8 / 7 * HOUR_S - 2000)
    assert result.waits[-2].gpus == "5-8"
    # the other order has nobody give up
    assert waits(replay(jobs, "easy"))["3-4"] > 99 * HOUR_S


def test_shares_are_the_weights_while_all_have_work_waiting() -> None:
    jobs = [
        job(number, number // 20, 1 + number % 2, 300 + 7 * (number % 13), tenant=number % 2) for number in range(2000)
    ]
    ours, fifo = (replay(jobs, order, weights=(3.0, 1.0), until_s=20_000) for order in ("ours", "fifo"))
    assert ours.unfairness is not None
    assert ours.one_job is not None
    assert fifo.unfairness is not None
    assert ours.unfairness < 0.02 + ours.one_job
    assert fifo.unfairness > 0.2
    assert ours.contended > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("order", "other"), SAME_ALONE.items())
def test_orders_by_tenant_are_others_of_these_with_one_tenant(order: str, other: str) -> None:
    drawn = trace.drawn(200, gpus=16, load=1.2, seed=2)
    jobs = trace.assigned(drawn, weights=(1.0,), declared=0.5, seed=2)
    found = replay(jobs, order, nodes=2)
    assert msgspec.structs.replace(found, order=other) == replay(jobs, other, nodes=2)


def test_fair_easy_reserves_at_once_and_for_the_tenant_that_has_had_least() -> None:
    jobs = [
        job(0, 0, 4, 100, declared=100), job(1, 1, 8, 50), job(2, 2, 8, 10, tenant=1), job(3, 3, 4, 200),
        job(4, 4, 2, 90, declared=90),
    ]  # fmt: skip
    easy, fair, ours = (replay(jobs, order, weights=(1.0, 1.0)) for order in ("easy", "fair easy", "ours"))
    # the node is reserved until 100 when the first ends: for the oldest, or for the tenant that has had nothing
    assert waits(easy) == {"2": 0, "3-4": 157, "5-8": 148, "all": 157}
    assert waits(fair) == {"2": 0, "3-4": 157, "5-8": 109, "all": 157}
    # nothing is reserved yet, so that the job of 4 goes first and is in the way of all others
    assert waits(ours) == {"2": 96, "3-4": 0, "5-8": 212, "all": 212}


def test_reserved_fifo_reserves_after_the_bounded_wait_and_for_the_oldest() -> None:
    jobs = [job(0, 0, 4, 4000), job(1, 10, 8, 100), job(2, 10, 8, 300, tenant=1), job(3, 1900, 4, 9000)]
    fifo, aged, ours = (replay(jobs, order, weights=(1.0, 1.0)) for order in ("fifo", "reserved fifo", "ours"))
    assert waits(fifo) == {"3-4": 0, "5-8": 10_990, "all": 10_990}  # after the last one, which passed both by
    # both are blocked for half an hour at 1810, and the node is free at 4000: for the oldest, or for the other tenant
    assert waits(aged) == {"3-4": 2500, "5-8": 4090, "all": 4090}
    assert waits(ours) == {"3-4": 2500, "5-8": 4290, "all": 4290}


def test_a_job_that_waits_longer_than_half_an_hour_is_starved() -> None:
    jobs = [job(0, 0, 8, 1800), job(1, 0, 8, 1), job(2, 0, 8, 1), job(3, 5000, 1, 1)]
    result = replay(jobs, "strict fifo")
    starved = {each.gpus: (each.jobs, each.starved) for each in result.waits}
    assert starved == {"1": (1, 0), "5-8": (3, 1), "all": (4, 1)}


def test_kueues_queues_of_several_tenants_do_not_hold_up_each_other() -> None:
    two = [job(0, 0, 6, 100), job(1, 1, 8, 10), job(2, 2, 2, 10), job(3, 3, 2, 10, tenant=1)]
    strict = replay(two, "kueue strict", weights=(1.0, 1.0))
    assert {each.gpus: (each.mean_s, each.largest_s) for each in strict.waits}["2"] == (54, 108)  # 108 and 0


def test_kueue_serves_those_within_their_quota_first() -> None:
    jobs = [
        job(0, 0, 8, 100), job(1, 1, 4, 50), job(2, 2, 4, 50), job(3, 3, 4, 50, tenant=1),
    ]  # fmt: skip
    found = replay(jobs, "kueue best effort", weights=(1.0, 1.0))
    # at 100 each of both has four of its own; the second of the first tenant would borrow
    assert waits(found)["3-4"] == 148


def test_jobs_that_wait_at_the_end_count_until_then() -> None:
    result = replay([job(0, 0, 8, 1000), job(1, 10, 8, 5)], "fifo", until_s=500)
    assert waits(result)["5-8"] == 490
    assert (result.waits[-1].jobs, result.waits[-1].began) == (2, 1)
    assert result.utilisation == 1


def test_what_finds_no_place_covers_what_is_larger() -> None:
    assert pods(20, 8) == (7, 7, 6)
    assert covers((8, 8), (8,))
    assert not covers((6, 6), (8,))
    blocked = Blocked()
    assert (8, 8) not in blocked
    blocked.add((4,))
    assert (8, 8) in blocked
    assert (2,) not in blocked


def test_figures_are_the_mean_over_seeds() -> None:
    one, two = (replay([job(0, 0, 8, 100), job(1, at, 8, 10)], "fifo") for at in (20, 40))
    both = over_seeds([one, two])
    assert waits(both)["5-8"] == 70
    assert both.unfairness is None


@pytest.mark.slow
def test_the_command_compares_all_orders(tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    options = ("--jobs", "60", "--nodes", "2", "--shape", "philly", "--seeds", "2", "--declared", "0.5")
    printed = run(*options, "--order", "all", "--tenants", "2,1", "--plot", str(picture))
    drawn = "".join(ElementTree.parse(picture).getroot().itertext())
    for order in ORDERS:
        assert order in printed
        assert order in drawn
    alone = run(*options, "--order", "all")
    assert "With one tenant kueue strict is strict fifo" in alone
    found = json.loads(run(*options, "--order", "ours", "--order", "kueue strict", "-o", "json"))
    assert [row["order"] for row in found] == ["ours", "kueue strict"]
    assert found[0]["waits"][-1]["jobs"] == found[0]["waits"][-1]["began"] == 60


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--declared", "1"), "--declared and --tenants need --order"),
        (("--order", "ours", "--tenants", "1,0"), "give weights above 0, such as 4,2,1,1"),
        (("--order", "ours", "--tenants", "a"), "give weights above 0"),
        (("--order", "ours", "--policy", "ours", "--policy", "random"), "give one --policy"),
        (("--shape", "pai", "--trace", "x.csv"), "exclude each other, because both give the jobs. Remove one"),
    ],
)
def test_what_does_not_go_together_is_refused(options: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "--jobs", "5", "--nodes", "1", *options])
    assert result.exit_code == 1
    assert told in result.output
