"""A steady stream of pods: how long each waits for its gate to go and to be bound."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.bench.throughput import usage
from tests.bench.throughput.numbers import percentile
from tests.bench.throughput.stage import Stage
from tests.bench.throughput.watching import watching
from tests.bench.throughput.workloads import Work

_LIFE_S = 4.0  # how long a pod stays
_LIMIT_S = 60


async def steady(stage: Stage, variant: str, *, rate: float, seconds: float) -> dict[str, Any]:
    """Return percentiles of the milliseconds from a pod's POST being sent to what a watch shows of it."""
    async with stage.ready_for(variant):
        works = stage.works(variant, "steady", int(rate * seconds))
        begun_at: dict[str, float] = {}
        answered_at: dict[str, float] = {}

        async def live(work: Work) -> None:
            begun_at[work.name] = time.monotonic()
            await stage.add(work)
            answered_at[work.name] = time.monotonic()
            await asyncio.sleep(_LIFE_S)
            await stage.delete(work.name)

        async with watching(stage.client) as seen, asyncio.TaskGroup() as lives:
            used = usage.Usage(stage.pids())
            begun = time.monotonic()
            for number, work in enumerate(works):
                await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
                lives.create_task(live(work))
            await seen.until(lambda: len(seen.bound) >= len(works), seconds=_LIMIT_S)
            spent = used.spent()
        ends = {"answered": answered_at, "ungated": seen.ungated, "bound": seen.bound}
        figures = {
            "variant": variant,
            "nodes": stage.machines.count,
            "pods": len(works),
            "rate": rate,
            "bound": len(seen.bound),
            "cpu_ms_a_pod": {part: 1000 * s / len(works) for part, s in spent.items()},
            **{f"{end}_ms": _spread([1000 * (at - begun_at[name]) for name, at in times.items()])
               for end, times in ends.items()},
        }  # fmt: skip
        await stage.clear()
    return figures


def _spread(values: list[float]) -> dict[str, float]:
    return {f"p{part}": percentile(values, part) for part in (50, 90, 99)} | {"max": max(values, default=0.0)}
