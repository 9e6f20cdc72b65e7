"""``gputopo usage`` of a million pods: what the controller keeps of them, and how long a report takes.

Pods of half an hour to four hours, so many at a time that in 35 days there were a million; the controller counts them
once a minute of its time, writes its ConfigMaps, and reports are made of what these say.

    python -m tests.bench.usage --pods 1000000
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import resource
import time
from collections.abc import Callable

from dradriver.api.claims import usage_config_maps
from dradriver.api.claims.usage_config_maps import Bucket, Detail, Details, Hours
from dradriver.api.policies.gpu_prices import Price, Prices
from dradriver.cli import usage_files
from dradriver.cli.period import Period
from dradriver.cli.usage_report import By, report
from dradriver.cluster.pods.gpu_hours import Gap, GpuHours

_DAYS = 35
_HOURS = _DAYS * 24
_FIRST = 400_008  # an hour that begins a day
_PRODUCTS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S")


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def counted(pods: int, namespaces: int) -> tuple[list[dict[str, object]], float]:
    """Return the ConfigMaps of so many pods, and the GPU-seconds that they really had."""
    rng, book = random.Random(7), GpuHours()
    book.begin({}, {})
    starts = sorted(rng.uniform(0, _HOURS) for _ in range(pods))
    made: list[dict[str, object]] = []
    truth = 0.0
    running: list[tuple[float, int, float, Bucket]] = []
    number = 0
    for hour in range(_HOURS):
        while number < pods and starts[number] < hour + 1:
            bucket = Bucket(
                f"team-{rng.randrange(namespaces)}", f"Job/train-{number // 8}", rng.choice(_PRODUCTS), "whole"
            )
            end = min(starts[number] + rng.uniform(0.5, 4), _HOURS)
            heapq.heappush(running, (end, number, starts[number], bucket))
            number += 1
        gaps: list[Gap] = []
        for end, which, start, bucket in running:
            since, until = max(start, hour) * 3600, min(end, hour + 1) * 3600 - 1e-6
            truth += until - since
            gpus, pod = {bucket: 1.0}, f"train-{which // 8}-{which:07x}"
            book.add(_FIRST * 3600 + since, _FIRST * 3600 + until, gpus, pod, gaps)
            if which % 10 == 0:
                book.add(_FIRST * 3600 + since, _FIRST * 3600 + until, gpus, pod, gaps, idle=True)
        while running and running[0][0] < hour + 1:
            heapq.heappop(running)
        book.forget_pods_before(_FIRST + hour)
        if hour % 24 == 23:
            day = (_FIRST + hour) // 24
            made.append(
                usage_config_maps.config_map(
                    day,
                    book.hours,
                    until=(_FIRST + hour + 1) * 3600.0,
                    namespace="x",
                    details=book.details,
                )
            )
            book.forget_before(_FIRST + hour + 1)
    return made, truth


def timed(what: str, work: Callable[[], object]) -> None:
    begun = time.perf_counter()
    work()
    print(f"{what}: {time.perf_counter() - begun:.2f} s, {memory_mib():.0f} MiB at most so far")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000)
    parser.add_argument("--namespaces", type=int, default=200)
    options = parser.parse_args()
    begun = time.perf_counter()
    made, truth = counted(options.pods, options.namespaces)
    sizes = [len(json.dumps(one)) for one in made]
    print(
        f"{options.pods} pods in {_DAYS} days, counted and written in {time.perf_counter() - begun:.1f} s, "
        f"{memory_mib():.0f} MiB; {len(made)} ConfigMaps of {sum(sizes) / 2**20:.1f} MiB, the largest of "
        f"{max(sizes) / 2**20:.2f} MiB"
    )
    hours: Hours = {}
    details: Details = {}

    def read() -> None:
        for one in made:
            kept = usage_config_maps.read({"metadata": {"name": "x", "resourceVersion": "1"}, "data": one["data"]})
            hours.update(kept.hours)
            details.update({hour: kept.details.get(hour, Detail()) for hour in kept.hours})

    timed("read", read)
    prices = Prices(currency="EUR", gpus=(Price(per_hour=2.0),))
    within = Period(_FIRST, _FIRST + _HOURS)
    every: tuple[By, ...] = ("namespace", "tenant", "workload", "pod", "product")
    for by in every:

        def make(by: By = by) -> None:
            found = report(hours, details, by=by, within=within, prices=prices, tenant_of=str)
            assert abs(found.total.gpu_hours * 3600 - truth) < 1e-6 * truth, "every second is in it"
            rows = f"{len(found.rows)} rows"
            print(f"  {rows}, {found.total.gpu_hours:.0f} GPU hours, truth {truth / 3600:.0f}")
            if by == "pod":
                timed("  xlsx of these", lambda: usage_files.as_xlsx(found))

        timed(f"by {by}", make)


if __name__ == "__main__":
    main()
