"""One large gang at a time: seconds from its last pod's creation to its last seat, and until all are bound."""

from __future__ import annotations

from typing import Any

from tests.bench.gangs.seen import Claim, Pod, now, seeing
from tests.bench.throughput import usage, workloads
from tests.bench.throughput.stage import Stage

_LIMIT_S = 300


async def big(stage: Stage, name: str, pods: int, gpus: int) -> dict[str, Any]:
    """Return the figures of one gang; afterwards nothing of it is left.

    Times are seconds from the answer to the last creation: the last claim seen made, the last gate seen gone, the last
    claim seen allocated, the last pod seen bound. CPU is in milliseconds a pod, by process.
    """
    works = workloads.gang(name, pods, gpus=gpus)
    first: dict[str, dict[str, float]] = {key: {} for key in ("claims_s", "ungated_s", "seated_s", "bound_s")}

    def changed(thing: Pod | Claim, there: bool) -> None:
        own = thing.metadata.name
        if isinstance(thing, Claim) and there:
            first["claims_s"].setdefault(own, now())
            if thing.gpus:
                first["seated_s"].setdefault(own, now())
        elif isinstance(thing, Pod) and there:
            if not thing.spec.scheduling_gates:
                first["ungated_s"].setdefault(own, now())
            if thing.bound:
                first["bound_s"].setdefault(own, now())

    async with seeing(stage.client) as seen:
        seen.changed.append(changed)
        await stage.connect()
        answered = usage.requests(stage.api)
        used = usage.Usage(stage.pids())
        begun = now()
        await stage.create(works)
        created = now()
        whole = await seen.until(lambda: len(first["bound_s"]) >= pods, seconds=_LIMIT_S)
        spent = used.spent()
        took = now() - begun
        asked = usage.requests(stage.api) - answered
    figures = {
        "pods": pods,
        "gpus": gpus,
        "nodes": stage.machines.count,
        "whole": whole,
        "created_s": created - begun,
        **{what: max(times.values(), default=created) - created for what, times in first.items()},
        "first_bound_s": min(first["bound_s"].values(), default=created) - created,
        "cpu_ms_a_pod": {part: 1000 * seconds / pods for part, seconds in spent.items()},
        "cores_busy": sum(spent.values()) / took,
        "requests_a_pod": {what: round(count / pods, 2) for what, count in asked.items() if count >= pods / 20},
    }
    await stage.clear()
    return figures
