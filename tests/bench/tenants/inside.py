"""The measurement itself, next to the control plane: `python -m ...inside VERSION OPTIONS...`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import time
from typing import Any, Final

import yaml

from dradriver.api.base import names
from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import NAMESPACES, PODS
from tests.bench.gangs.seen import Claim, Pod, now, seeing
from tests.bench.tenants import options
from tests.bench.tenants.verdicts import Team, Verdicts, Wish
from tests.bench.throughput import chart, launch, usage
from tests.bench.throughput.crowd import crowd
from tests.bench.throughput.driver import Driver
from tests.bench.throughput.launch import say
from tests.bench.throughput.machines import Machines
from tests.bench.throughput.numbers import percentile
from tests.bench.throughput.stage import Stage
from tests.bench.throughput.workloads import OURS
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO
from tests.resources import PRIORITY_CLASSES

_CONNECTIONS: Final = 32
_AHEAD_MINUTES: Final = 10.0
_URGENT: Final = "urgent"
_URGENT_VALUE: Final = 100
_URGENT_PART: Final = 0.1
_WAIT_S: Final = 900


async def main(plane: Nodeless, asked: argparse.Namespace) -> int:
    """Measure what the options ask for, and return the exit status."""
    found = await chart.render(plane.helm, REPO, plane.folder / "helm")
    folder = plane.folder / "driver"
    folder.mkdir(parents=True)
    teams = _teams(asked.teams, asked.nodes * 8)
    found.use_policies(_policies(teams), folder / "policies.yaml")
    driver = Driver(REPO, found, folder, profiles=None)
    async with Client(from_kubeconfig(plane.kubeconfig), user_agent="tenants", timeout_s=120) as client:
        stage = Stage(
            client,
            chart.Kubectl(plane.binaries / "kubectl", plane.kubeconfig),
            kubeconfig=plane.kubeconfig,
            machines=Machines(client, "dgx-h100", connections=_CONNECTIONS),
            drivers={OURS: driver},
            gpus=1,
            parts=None,
            connections=_CONNECTIONS,
            driver_stays=False,
            profiles=None,
        )
        await stage.prepare()
        for name in teams:
            await client.create(NAMESPACES, {"metadata": {"name": name}})
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": _URGENT}, "value": _URGENT_VALUE})
        await stage.machines.grow(asked.nodes)
        await stage.quiet()
        say(f"{asked.nodes} nodes are there; load {os.getloadavg()[0]:.1f}")
        try:
            figures = await _run(stage, asked, teams)
        finally:
            if asked.log is not None:
                shutil.copy(folder / "controller.log", asked.log)
    content = {"options": {key: str(value) for key, value in vars(asked).items()}, "cores": os.cpu_count()}
    (plane.folder / launch.RESULTS).write_text(json.dumps(content | figures, indent=1))
    return int(bool(figures["wrong"]))


def _teams(count: int, gpus: int) -> dict[str, Team]:
    """Return teams whose weights are 1, 2, 3 and so on, each with a cap of once and a half what its weight says."""
    weights = range(1, count + 1)
    return {
        f"team-{number}": Team(f"team-{number}", number, max(8, round(1.5 * gpus * number / sum(weights))))
        for number in weights
    }


def _policies(teams: dict[str, Team]) -> str:
    """Return policies with these teams."""
    tenants = {
        name: {"namespaces": [name], "weight": team.weight, "cap": [{"gpus": team.cap}]} for name, team in teams.items()
    }
    return str(yaml.safe_dump({"tenants": tenants, "queue": {"aheadMinutes": _AHEAD_MINUTES}}))


async def _run(stage: Stage, asked: argparse.Namespace, teams: dict[str, Team]) -> dict[str, Any]:
    rng = random.Random(asked.seed)
    wishes: dict[str, Wish] = {}
    for number in range(asked.pods):
        team = rng.choice(list(teams))
        priority = _URGENT_VALUE if rng.random() < _URGENT_PART else 0
        wishes[f"{team}-{number}"] = Wish(team, rng.choice([1, 1, 2, 4, 8]), priority)
    driver = stage.drivers[OURS]
    async with driver.running("webhook", "controller"), seeing(stage.client, None) as seen:
        verdicts = Verdicts(seen, teams, wishes, ahead_s=_AHEAD_MINUTES * 60)
        left = set(wishes)
        bound: dict[str, asyncio.Event] = {name: asyncio.Event() for name in wishes}

        def changed(thing: Pod | Claim, there: bool) -> None:
            if isinstance(thing, Pod) and there and thing.bound and thing.metadata.name in bound:
                bound[thing.metadata.name].set()

        seen.changed.append(changed)
        used = usage.Usage(stage.pids())
        begun = now()

        async def live(name: str) -> None:
            await bound[name].wait()
            await asyncio.sleep(rng.uniform(*asked.lives))
            await stage.client.delete(PODS, name, namespace=wishes[name].team)
            left.discard(name)

        async def look() -> None:
            while True:
                verdicts.look()
                if int(now() - begun) % 15 == 0:
                    counts = {kind: len(which) for kind, which in verdicts.wrong.items()}
                    say(f"{now() - begun:4.0f} s: {len(left)} pods are left, {counts}; load {os.getloadavg()[0]:.1f}")
                await asyncio.sleep(1)

        async with asyncio.timeout(_WAIT_S), asyncio.TaskGroup() as tasks:
            looks = tasks.create_task(look())
            lives = [tasks.create_task(live(name)) for name in wishes]
            created = time.monotonic()
            await crowd(lambda name: stage.client.create(PODS, _pod(name, wishes[name])), wishes, at_once=_CONNECTIONS)
            say(f"{asked.pods} pods were created in {time.monotonic() - created:.0f} s")
            await asyncio.gather(*lives)
            looks.cancel()
        verdicts.look()
        spent, took = used.spent(), now() - begun
    return _figures(verdicts, teams, wishes, spent=spent, took_s=took)


def _figures(
    verdicts: Verdicts, teams: dict[str, Team], wishes: dict[str, Wish], *, spent: dict[str, float], took_s: float
) -> dict[str, Any]:
    say(f"{len(wishes)} pods came and went in {took_s:.0f} s; "
        + ", ".join(f"{kind}: {len(which)}" for kind, which in verdicts.wrong.items()))  # fmt: skip
    for kind, which in verdicts.wrong.items():
        for text in which[:20]:
            say(f"  {kind}: {text}")
    for name, team in teams.items():
        own = [seconds for pod, seconds in verdicts.waited_s.items() if wishes[pod].team == name]
        say(f"  {name}: weight {team.weight:g}, at most {verdicts.most[name]} of {team.cap} GPUs; waited "
            f"{percentile(own, 50):.1f} / {percentile(own, 99):.1f} s (p50 / p99)")  # fmt: skip
    costs = {part: 1000 * seconds / len(wishes) for part, seconds in spent.items()}
    say("  ms CPU a pod: " + ", ".join(f"{part} {cost:.1f}" for part, cost in costs.items()))
    wrong = [text for which in verdicts.wrong.values() for text in which]
    return {
        "wrong": wrong,
        "most": verdicts.most,
        "waited_s": verdicts.waited_s,
        "cpu_ms_a_pod": costs,
        "took_s": took_s,
    }


def _pod(name: str, wish: Wish) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {names.GPU_RESOURCE: wish.gpus}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": resources}],
    }
    if wish.priority:
        spec["priorityClassName"] = _URGENT
    metadata = {"name": name, "namespace": wish.team, "annotations": {names.POLICY: "best-effort"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


if __name__ == "__main__":
    launch.inside(main, options.parse)
