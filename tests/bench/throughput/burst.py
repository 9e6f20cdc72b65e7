"""Many pods at once: how many a second are bound, and what each costs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from tests.bench.throughput import usage
from tests.bench.throughput.stage import Stage
from tests.bench.throughput.watching import watching

_LIMIT_S = 900
_PROFILE_S = 8


async def burst(stage: Stage, variant: str, prefix: str, pods: int) -> dict[str, Any]:
    """Return the figures of one burst; afterwards nothing of it is left.

    Times are seconds from the first request: the last creation's answer, the last gate seen gone, the last pod seen
    bound. CPU is in milliseconds a pod, by process.
    """
    async with stage.ready_for(variant):
        works = stage.works(variant, prefix, pods)
        pids = stage.pids() | {"client": os.getpid()}
        profile = stage.profiled(f"{variant}-{prefix}", seconds=_PROFILE_S)
        async with profile, watching(stage.client) as seen:
            await stage.connect()
            answered = usage.requests(stage.api)
            used = usage.Usage(pids)
            begun = time.monotonic()
            await stage.create(works)
            created = time.monotonic()
            whole = await seen.until(lambda: len(seen.bound) >= pods, seconds=_LIMIT_S)
            spent = used.spent()
        asked = usage.requests(stage.api) - answered
        memory = {part: usage.memory_mib(pid) for part, pid in pids.items()}
        bound = max(seen.bound.values(), default=begun) - begun
        figures = {
            "variant": variant,
            "nodes": stage.machines.count,
            "pods": pods,
            "bound": len(seen.bound),
            "whole": whole,
            "pods_per_s": len(seen.bound) / bound if bound else 0.0,
            "created_s": created - begun,
            "ungated_s": max(seen.ungated.values(), default=begun) - begun,
            "bound_s": bound,
            "cpu_ms_a_pod": {part: 1000 * seconds / pods for part, seconds in spent.items()},
            "requests_a_pod": _a_pod(asked, pods),
            "memory": memory,
        }
        await stage.clear()
    return figures


def _a_pod(asked: Mapping[str, int], pods: int) -> dict[str, float]:
    """Requests that come about once for many pods are not of interest."""
    each = {what: round(count / pods, 2) for what, count in asked.items()}
    return dict(sorted(((what, count) for what, count in each.items() if count >= 0.05), key=lambda pair: -pair[1]))
