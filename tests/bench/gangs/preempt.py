"""A gang for whom others end, again and again: seconds from the end of the last of them until all of it is bound.

All GPUs are in use by pods of lower priority, of 1, 2, 4 and 8 GPUs and of several graces, that ``kubelets`` end.
How many may end within a minute is let free, so that no round has to wait for the one before. Up to five seconds of
what is measured are the scheduler's: so often it looks whether who has a seat may go.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import yaml

from dradriver.kube.resources import PODS
from tests.bench.gangs.kubelets import Kubelets
from tests.bench.gangs.seen import Pod, Seen, now, seeing
from tests.bench.gangs.verdicts import Clock, Verdicts
from tests.bench.throughput import workloads
from tests.bench.throughput.crowd import crowd
from tests.bench.throughput.numbers import percentile
from tests.bench.throughput.stage import Stage
from tests.bench.throughput.workloads import NAMESPACE, OURS, Work
from tests.resources import PRIORITY_CLASSES

ON: Final = "controller.preemption=true"  # a chart's value
_TERMS: Final = {"enabled": True, "minRunMinutes": 0, "workloadsPerMinute": 10_000, "backOffMinutes": 0}
_ABOVE: Final = "above"
_GRACES_S: Final = (0, 1, 2, 5, 10)
_SETS: Final = ((8,), (4, 4), (4, 2, 2), (4, 2, 1, 1), (2, 2, 2, 2), (2, 2, 2, 1, 1), (1,) * 8)
_WAIT_S: Final = 180
_PROMISED_S: Final = 10.0  # from the end of the last victim to the last bound pod, for 95 of 100 gangs
_AT_ONCE: Final = 16


def policies() -> str:
    """Return policies by which pods end for those of higher priority."""
    return str(yaml.safe_dump({"queue": {"preemption": _TERMS}}))


async def preempt(stage: Stage, asked: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Return and print the figures of all rounds; of each the seconds, and who ended for it."""
    rng = random.Random(asked.seed)
    sizes = {f"high{number}": asked.pods for number in range(asked.rounds)}
    found: list[dict[str, Any]] = []
    await stage.client.create(PRIORITY_CLASSES, {"metadata": {"name": _ABOVE}, "value": 1000})
    clock = Clock()
    clock.go_on()
    driver = stage.drivers[OURS]
    async with driver.running("webhook", "controller"), seeing(stage.client) as seen, asyncio.TaskGroup() as tasks:
        kubelets, verdicts = Kubelets(stage.client, seen, rng, tasks), Verdicts(seen, clock, sizes)
        await stage.connect()
        for number, name in enumerate(sizes):
            await _fill(stage, seen, f"low{number}", rng)
            await stage.quiet(seconds=20)
            each = await _round(stage, seen, kubelets, name, asked)
            verdicts.look()
            verdicts.ends(name)
            say(f"{name}: " + ", ".join(f"{key} {value}" for key, value in each.items()))
            found.append(each)
            await crowd(lambda work: stage.delete(work.name), _gang(name, asked), at_once=_AT_ONCE)
            await seen.until(lambda name=name: _left(seen, name), seconds=_WAIT_S)  # type: ignore[misc]
        await crowd(lambda pod: stage.client.delete(PODS, pod, namespace=NAMESPACE), list(seen.pods), at_once=_AT_ONCE)
        await seen.until(lambda: not seen.pods, seconds=_WAIT_S)
    wrong = [text for which in verdicts.wrong.values() for text in which]
    wrong += [f"round {number}: not whole" for number, each in enumerate(found) if not each["whole"]]
    say(f"a gang of {asked.pods} pods of {asked.gpus} GPUs on {asked.nodes} full nodes, {len(found)} rounds, seconds: "
        "p50 / p95 / most")  # fmt: skip
    meanings = {
        "decided_s": "from its last pod's creation to the first who was told to end",
        "told_s": "from there to the last",
        "bound_s": "from the end of the last of them to the last bound pod",
    }
    for key, meaning in meanings.items():
        values = [each[key] for each in found if each["whole"]]
        say("  " + " / ".join(f"{percentile(values, part):.2f}" for part in (50, 95, 100)) + f"  {meaning}")
    if percentile([each["bound_s"] for each in found], 95) > _PROMISED_S:
        wrong.append(f"bound later than {_PROMISED_S:g} s after the end of the last who had to end for it")
    for text in wrong:
        say(f"  wrong: {text}")
    return {"preempt": found, "wrong": wrong}


async def _fill(stage: Stage, seen: Seen, name: str, rng: random.Random) -> None:
    """Have all free GPUs in use by pods that may have to end, the largest made first: so they fit."""
    free = stage.machines.count * stage.machines.gpus - sum(len(claim.gpus) for claim in seen.claims.values())
    wanted = sorted((gpus for _ in range(free // 8) for gpus in rng.choice(_SETS)), reverse=True)
    for size in sorted(set(wanted), reverse=True):
        works = list(_victims(f"{name}-{size}", wanted.count(size), size, rng))
        await crowd(stage.add, works, at_once=_AT_ONCE)
        names = [work.name for work in works]
        await seen.until(
            lambda names=names: all(each in seen.pods and seen.pods[each].status.phase == "Running" for each in names),  # type: ignore[misc]
            seconds=_WAIT_S,
        )


def _victims(prefix: str, count: int, gpus: int, rng: random.Random) -> Iterator[Work]:
    for number in range(count):
        work = workloads.alone(f"{prefix}-{number}", gpus=gpus)
        work.pod["spec"]["terminationGracePeriodSeconds"] = rng.choice(_GRACES_S)
        yield work


def _gang(name: str, asked: argparse.Namespace) -> list[Work]:
    works = workloads.gang(name, asked.pods, gpus=asked.gpus)
    for work in works:
        work.pod["spec"]["priorityClassName"] = _ABOVE
    return works


def _left(seen: Seen, gang: str) -> bool:
    """Return whether a gang is gone, and so is the claim of everybody who is."""
    there = {pod.metadata.uid for pod in seen.pods.values() if pod.gang != gang}
    return len(there) == len(seen.pods) and all(there.intersection(claim.users) for claim in seen.claims.values())


async def _round(stage: Stage, seen: Seen, kubelets: Kubelets, name: str, asked: argparse.Namespace) -> dict[str, Any]:
    begun = now()
    gone: dict[str, float] = {}  # those without a grace are never seen ending
    bound: dict[str, float] = {}

    def changed(thing: object, there: bool) -> None:
        if isinstance(thing, Pod) and thing.gang == name and there and thing.bound:
            bound.setdefault(thing.metadata.name, now())
        elif isinstance(thing, Pod) and thing.gang != name and not there:
            gone.setdefault(thing.metadata.uid, now())

    seen.changed.append(changed)
    try:
        await stage.create(_gang(name, asked))
        created = now()
        whole = await seen.until(lambda: len(bound) == asked.pods, seconds=_WAIT_S)
    finally:
        seen.changed.remove(changed)
    told, ended = (
        gone | {uid: at for uid, at in each.items() if at > begun} for each in (kubelets.told, kubelets.ended)
    )
    first = min(told.values(), default=created)
    return {
        "whole": whole,
        "victims": len(told),
        "decided_s": round(first - created, 2),
        "told_s": round(max(told.values(), default=created) - first, 2),
        "ended_s": round(max(ended.values(), default=created) - first, 2),
        "bound_s": round(max(bound.values(), default=created) - max(ended.values(), default=created), 2),
    }
