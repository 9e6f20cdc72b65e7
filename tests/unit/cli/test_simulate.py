"""The simulated cluster: jobs come, wait, run and leave; nothing is given twice."""

from __future__ import annotations

import json
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from dradriver.cli.main import main
from dradriver.cli.simulator import placement_policies, trace
from dradriver.cli.simulator.placement_policies import GANGS, POLICIES
from dradriver.cli.simulator.policy_replay import Replay, Result
from dradriver.cli.simulator.simulated_cluster import Cluster, Part
from dradriver.cli.simulator.trace import Job, TraceError
from tests.fakes import machines


def replay(jobs: list[Job], *, policy: str = "ours", nodes: int = 2, communication: float = 0.0) -> Result:
    return Replay([machines.dgx1()] * nodes, jobs, policy=policy, communication=communication, seed=1).run()


def run(*options: str) -> str:
    result = CliRunner().invoke(main, ["simulate", *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_starts_and_leaves_and_no_gpu_is_given_twice(policy: str) -> None:
    jobs = trace.drawn(150, gpus=24, load=1.2, seed=3)
    result = replay(jobs, policy=policy, nodes=3, communication=0.2)  # the cluster asserts
    assert result.finished == 150
    assert 0 < result.bandwidth <= 1
    assert 0 <= result.best_share <= 1
    assert 0 < result.utilisation <= 1
    assert result == replay(jobs, policy=policy, nodes=3, communication=0.2)


def test_a_job_waits_until_there_is_room() -> None:
    jobs = [Job(0, 0, 8, 100), Job(1, 0, 8, 100), Job(2, 10, 8, 50)]
    result = replay(jobs)
    assert (result.mean_wait_s, result.median_wait_s) == (30, 0)
    assert result.utilisation == 1


def test_small_jobs_pass_by_large_ones_that_wait() -> None:
    jobs = [Job(0, 0, 6, 100), Job(1, 1, 8, 10), Job(2, 2, 2, 10)]
    assert replay(jobs, nodes=1).mean_wait_s == pytest.approx(99 / 3)


def test_bandwidth_makes_jobs_longer_as_far_as_they_communicate() -> None:
    jobs = [Job(0, 0, 1, 10), Job(1, 1, 2, 1000), Job(2, 2, 8, 1)]
    ideal, slow = (replay(jobs, policy=policy, nodes=1, communication=0.5) for policy in ("ours", "first fit"))
    assert ideal.bandwidth == 1
    assert slow.bandwidth == pytest.approx((1 + 1) / 2)  # first fit finds 1-2
    jobs[0] = Job(0, 0, 2, 2000)  # first fit takes 0-1, one link of two
    slow = replay(jobs[:1] + jobs[2:], policy="first fit", nodes=1, communication=0.5)
    assert slow.mean_wait_s == pytest.approx((2000 * 1.5 - 2) / 2)


def test_gangs_wait_holding_nothing_while_single_pods_block_each_other() -> None:
    # the second node is busy for long; a pod of the job of 16 holds the first meanwhile, or another job has it
    jobs = [Job(0, 0, 8, 10), Job(1, 0, 8, 1000), Job(2, 1, 16, 50), Job(3, 2, 8, 100)]
    apart, together = replay(jobs, policy="ours"), replay(jobs, policy=GANGS)
    assert apart.finished == together.finished == 4
    assert (apart.given_up, together.given_up) == (1, 0)
    assert together.mean_wait_s == pytest.approx((999 + 8) / 4)
    assert together.mean_wait_s < apart.mean_wait_s


def test_the_best_partition_of_go_gpuallocator() -> None:
    # what the Go program answers: half of the bandwidth that 1 and 2 would have
    assert placement_policies.best_partition(machines.dgx1(), 0b1000111, 2) == 0b11


def test_the_static_ladder_takes_a_whole_group_before_anything_else() -> None:
    cluster = Cluster([machines.bridge_pairs()] * 2)
    cluster.take([Part(0, 0b1010101)])
    found = placement_policies.ladder(cluster, 2, random.Random(1))
    assert found is not None
    assert found.node == 1
    cluster.take([Part(1, 0b1010101)])
    found = placement_policies.ladder(cluster, 2, random.Random(1))
    assert found is not None
    assert (found.node, found.mask) == (0, 0b1010)  # of one NUMA node


def test_fragmentation_is_the_share_outside_good_quads() -> None:
    cluster = Cluster([machines.dgx1()])
    assert cluster.fragmentation() == 0
    cluster.take([Part(0, 0b1)])
    assert cluster.fragmentation() == pytest.approx(3 / 7)
    cluster.take([Part(0, 0b11111110)])
    assert cluster.fragmentation() == 0


def test_drawn_jobs_ask_for_the_load_that_was_wished() -> None:
    jobs = trace.drawn(20_000, gpus=128, load=0.8, seed=5)
    assert jobs == trace.drawn(20_000, gpus=128, load=0.8, seed=5)
    asked = sum(job.gpus * job.duration_s for job in jobs) / (128 * jobs[-1].arrival_s)
    assert asked == pytest.approx(0.8, rel=0.08)
    assert {job.gpus for job in jobs} == set(trace.MIX)
    assert max(job.gpus for job in trace.drawn(500, gpus=8, load=1, seed=1)) == 8


def test_a_trace_is_read_in_the_order_of_arrival(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("gpus,duration_s,arrival_s\n2,10,5\n1,20,0.5\n")
    assert [(job.arrival_s, job.gpus, job.duration_s) for job in trace.read(file)] == [(0.5, 1, 20), (5, 2, 10)]
    found = json.loads(run("--trace", str(file), "--nodes", "1", "-o", "json", "--policy", "ours"))
    assert [(row["policy"], row["finished"]) for row in found] == [("ours", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,gpus\n1,2\n", "columns are missing: duration_s"),
        ("arrival_s,gpus,duration_s\n0,1,1\n1,x,2\n", "line 3"),
        ("arrival_s,gpus,duration_s\n-1,1,1\n", "arrival from 0"),
        ("arrival_s,gpus,duration_s\nnan,1,1\n", "arrival from 0"),
        ("arrival_s,gpus,duration_s\n0,0,1\n", "at least 1 GPU"),
        ("arrival_s,gpus,duration_s\n0,1\n", "line 2"),
        ("arrival_s,gpus,duration_s\n", "no jobs"),
        ("\x00", "columns are missing"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_place(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=message):
        trace.read(file)


def test_a_job_that_never_fits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,gpus,duration_s\n0,17,1\n")
    result = CliRunner().invoke(main, ["simulate", "--trace", str(file), "--nodes", "2"])
    assert result.exit_code == 1
    assert "requests 17 GPUs, and the cluster has 16" in result.output
    assert CliRunner().invoke(main, ["simulate", "--trace", str(tmp_path / "none.csv")]).exit_code == 1


def test_the_table_and_the_picture_show_every_policy(tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    wrong = CliRunner().invoke(main, ["simulate", "--jobs", "5", "--nodes", "1", "--plot", str(tmp_path)])
    assert (wrong.exit_code, "cannot be written" in wrong.output) == (1, True)
    printed = run("--jobs", "40", "--nodes", "2", "-m", "dgx1-v100", "-m", "dgx-h100", "--plot", str(picture))
    drawn = "".join(ElementTree.parse(picture).getroot().itertext())
    for policy in POLICIES:
        assert policy in printed
        assert policy in drawn


@pytest.mark.parametrize("option", ["--load", "--communication", "--fractions"])
def test_what_is_no_number_is_refused(option: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "--nodes", "1", "--jobs", "5", option, "nan"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'nan' is not a number" in result.stderr


def test_a_trace_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Spreadsheets write one."""
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,gpus,duration_s\n0,1,1\n", encoding="utf-8-sig")
    assert trace.read(file) == [Job(0, 0.0, 1, 1.0)]
