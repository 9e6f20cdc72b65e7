"""Jobs drawn in published shapes meet the tables that were published."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dradriver.cli.simulator import shaped_jobs, trace
from dradriver.cli.simulator.published_shapes import BIN_S, BY_HOUR, BY_WEEKDAY, QUANTILES, SHAPES, SIZES
from dradriver.cli.simulator.shape_fit import fit

DRAWN = 50_000


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_sizes_and_durations_are_the_published_ones(name: str) -> None:
    shape = SHAPES[name]
    sizes, lasts = fit(name).draw(np.random.default_rng(3), DRAWN)
    for size, percent in zip(SIZES, shape.jobs, strict=True):
        assert 100 * float((sizes <= size).mean()) == pytest.approx(percent, abs=2)
    assert np.quantile(lasts, QUANTILES) == pytest.approx(shape.durations, rel=0.35)
    assert float(lasts.mean()) == pytest.approx(shape.mean_s, rel=0.2)


@pytest.mark.parametrize("name", SHAPES)
def test_gpu_time_by_size_is_the_published_one_in_the_mean(name: str) -> None:
    # what is drawn has it only roughly: a thousandth of the jobs has a third of the time
    found = fit(name)
    gpu_time = found.shares * np.array(found.sizes) * found.mean_s()
    for size, percent in zip(SIZES, SHAPES[name].gpu_time, strict=True):
        own = gpu_time[np.array(found.sizes) <= size].sum()
        assert 100 * float(own / gpu_time.sum()) == pytest.approx(percent, abs=0.5)


def test_arrivals_come_in_bursts_by_day_rather_than_by_night() -> None:
    bins = 26_064  # as many as were counted
    times = shaped_jobs.arrivals(np.random.default_rng(5), int(4.8 * bins), bins * BIN_S)
    counts = np.bincount((times // BIN_S).astype(int), minlength=bins)
    assert float(counts.var() / counts.mean()) == pytest.approx(15.4, rel=0.1)
    hours = np.bincount((times % 86_400 // 3600).astype(int), minlength=24)
    assert hours / hours.mean() == pytest.approx(np.array(BY_HOUR), abs=0.2)
    days = np.bincount((times[times < 25 * 7 * 86_400] // 86_400 % 7).astype(int))
    assert days / days.mean() == pytest.approx(np.array(BY_WEEKDAY), abs=0.1)


def test_each_seed_asks_for_the_load_that_was_wished_and_no_job_for_more_than_there_is() -> None:
    jobs = shaped_jobs.drawn("seren", 3000, gpus=64, load=0.8, seed=2)
    assert jobs == shaped_jobs.drawn("seren", 3000, gpus=64, load=0.8, seed=2)
    assert max(job.gpus for job in jobs) == 64
    assert [job.number for job in jobs] == list(range(3000))
    assert all(one.arrival_s <= other.arrival_s for one, other in itertools.pairwise(jobs))
    asked = sum(job.gpus * job.duration_s for job in jobs) / (64 * jobs[-1].arrival_s)
    assert asked == pytest.approx(0.8, rel=0.02)


def test_the_fewest_jobs_are_drawn_as_well() -> None:
    assert len(shaped_jobs.drawn("pai", 1, gpus=8, load=1, seed=1)) == 1


def test_tenants_and_declared_durations_are_given_to_any_jobs() -> None:
    jobs = trace.drawn(4000, gpus=64, load=0.8, seed=2)
    found = trace.assigned(jobs, weights=(3, 1), declared=0.5, seed=1)
    assert [(job.number, job.gpus) for job in found] == [(job.number, job.gpus) for job in jobs]
    assert sum(job.tenant == 0 for job in found) / 4000 == pytest.approx(0.75, abs=0.03)
    declared = [job for job in found if job.declared_s is not None]
    assert len(declared) / 4000 == pytest.approx(0.5, abs=0.03)
    assert all(1 <= (job.declared_s or 0) / job.duration_s <= 3 for job in declared)
    more = trace.assigned(jobs, weights=(3, 1), declared=0.8, seed=1)
    assert all(more[job.number] == job for job in declared)
    assert all(job.declared_s is None for job in trace.assigned(jobs, weights=(1,), declared=0, seed=1))
