"""Which machines ``gputopo simulate`` takes, every profile and one vendor at a time, and how large jobs are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dradriver.cli.main import main
from dradriver.cli.simulator import shaped_jobs, trace
from dradriver.cli.simulator.job_sizes import JobSizes
from dradriver.cli.simulator.placement_policies import POLICIES
from dradriver.topology import profiles
from tests.effort import sampled

PLACING = [name for name in profiles.names() if len(profiles.load(name).gpus) <= 16]
QUICK = ("random", "first fit", "ours", "ours, gangs")  # the others take seconds on 16 GPUs


def run(*options: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *options])


def finished(*options: str) -> list[int]:
    result = run(*options, "-o", "json")
    assert result.exit_code == 0, result.output
    return [row["finished"] for row in json.loads(result.stdout)]


@pytest.mark.parametrize("profile", sampled(PLACING, fast=2))
def test_every_job_leaves_on_any_machines(profile: str) -> None:
    chosen = [option for policy in QUICK for option in ("--policy", policy)]
    assert finished("-m", profile, "--nodes", "2", "--jobs", "30", *chosen) == [30] * len(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PLACING)
def test_every_job_leaves_under_every_policy(profile: str) -> None:
    assert finished("-m", profile, "--nodes", "2", "--jobs", "30") == [30] * len(POLICIES)


@pytest.mark.parametrize("profile", sampled(PLACING, fast=2))
def test_every_order_serves_them(profile: str) -> None:
    ordered = run("-m", profile, "--nodes", "2", "--jobs", "30", "--order", "easy", "--order", "ours", "-o", "json")
    assert ordered.exit_code == 0, ordered.output


@pytest.mark.parametrize(
    ("profile", "nodes", "sizes"),
    [
        ("dgx1-v100", 4, {1, 2, 3, 4, 6, 8, 16, 32}),
        ("dgx1-v100", 3, {1, 2, 3, 4, 6, 8, 16}),
        ("ascend-910a-x8", 4, {1, 2, 4, 8, 16, 32}),
        ("ascend-910a-x8", 1, {1, 2, 4, 8}),
        ("ascend-a3-x16", 2, {1, 2, 4, 6, 8, 16, 32}),
        ("ascend-box16-x16", 2, {1, 2, 3, 4, 6, 8, 16, 32}),
    ],
)
def test_jobs_are_drawn_as_large_as_the_product_gives(profile: str, nodes: int, sizes: set[int]) -> None:
    found = JobSizes([profiles.load(profile)] * nodes)
    mix = found.mixed(trace.MIX)
    assert set(mix) == sizes
    assert sum(mix.values()) == pytest.approx(sum(share for size, share in trace.MIX.items() if size <= found.most))


def test_a_job_of_another_number_has_the_next_that_all_its_pods_can_have() -> None:
    found = JobSizes([profiles.load("ascend-910a-x8")] * 3)
    wanted = (1, 3, 5, 8, 9, 17, 24)
    assert [found.fitting(gpus) for gpus in wanted] == [1, 4, 8, 8, 16, 24, 24]
    with pytest.raises(ValueError, match="25"):
        found.fitting(25)


def test_published_shapes_are_cut_to_what_the_product_gives() -> None:
    found = JobSizes([profiles.load("ascend-910a-x8")] * 3)
    jobs = shaped_jobs.drawn("philly", 300, gpus=24, load=0.8, seed=1, cut=found.cut)
    assert {job.gpus for job in jobs} == {1, 2, 4, 8, 16, 24}


def test_a_trace_runs_where_the_product_has_not_its_numbers(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,gpus,duration_s\n0,3,10\n0,5,10\n1,9,10\n")
    options = ("-m", "ascend-910a-x8", "--nodes", "2", "--trace", str(file), "--policy", "ours")
    assert finished(*options) == [3]
    # 4 + 8 of 16 until 10, then 8 + 8 until 20
    assert json.loads(run(*options, "-o", "json").stdout)[0]["mean_wait_s"] == pytest.approx(9 / 3)


@pytest.mark.slow
def test_unlike_machines_have_only_jobs_whose_pods_all_find_one() -> None:
    """32 GPUs of a node of 16 and two of 8 are two pods of 16, for which there is one node."""
    kinds = ("-m", "dgx1-v100", "-m", "dgx2-v100", "--nodes", "3")
    assert finished(*kinds, "--jobs", "200", "--policy", "ours", "--policy", "ours, gangs") == [200, 200]


def test_a_job_of_a_trace_that_finds_no_place_on_unlike_machines_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,gpus,duration_s\n0,32,1\n")
    result = run("-m", "dgx1-v100", "-m", "dgx2-v100", "--nodes", "3", "--trace", str(file))
    assert result.exit_code == 1
    assert "job 0 requests 32 GPUs, and the largest job that fits on these machines has 17" in result.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("-m", "mi300x-x8", "-m", "dgx-h100"),
            "of one vendor, and these machines are of amd and nvidia. Name the machines of one",
        ),
        (("-m", "mi300x-x8", "-m", "ascend-910b-x8", "--fractions", "0.5"), "Name the machines of one"),
        (
            ("-m", "mi300x-x8", "--fractions", "0.5"),
            "GPUs of amd have no shares and no MIG slices. Remove --fractions",
        ),
        (
            ("-m", "ascend-910a-x8", "--fractions", "0"),
            "GPUs of ascend have no shares and no MIG slices. Remove --fractions",
        ),
    ],
)
def test_what_vendors_do_not_have_is_refused(options: tuple[str, ...], told: str) -> None:
    result = run(*options, "--nodes", "2", "--jobs", "60")
    assert result.exit_code == 1
    assert told in result.output
