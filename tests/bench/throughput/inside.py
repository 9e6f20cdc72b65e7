"""The measurements themselves, next to the control plane: `python -m ...inside FOLDER VERSION OPTIONS...`."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from dradriver.api.policies.gpu_modes import Mode
from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from tests.bench.throughput import chart, launch, options, parts, report
from tests.bench.throughput.burst import burst
from tests.bench.throughput.driver import Driver
from tests.bench.throughput.launch import say
from tests.bench.throughput.machines import Machines
from tests.bench.throughput.stage import Stage
from tests.bench.throughput.starting import starting
from tests.bench.throughput.steady import steady
from tests.bench.throughput.workloads import OURS
from tests.bench.throughput.writes import writes
from tests.cluster.nodeless import Nodeless


async def main(plane: Nodeless, asked: argparse.Namespace) -> None:
    """Measure what the options ask for."""
    many = len(asked.tree) > 1
    drivers = {}
    for tree in asked.tree:
        found = await chart.render(plane.helm, tree, plane.folder / "helm")
        name = f"{OURS}:{tree.name}" if many else OURS
        drivers[name] = Driver(tree, found, plane.folder / f"driver-{tree.name}", profiles=asked.profile)
    variants = [name for variant in asked.variants for name in (drivers if variant == OURS else [variant])]
    async with Client(from_kubeconfig(plane.kubeconfig), user_agent="throughput", timeout_s=120) as client:
        kind = parts.KINDS[asked.parts] if asked.parts else None
        mode = kind.mode if kind else Mode()
        machines = Machines(client, asked.machine, mode=mode, connections=asked.connections)
        stage = Stage(
            client,
            chart.Kubectl(plane.binaries / "kubectl", plane.kubeconfig),
            kubeconfig=plane.kubeconfig,
            machines=machines,
            drivers=drivers,
            gpus=asked.gpus,
            parts=kind,
            connections=asked.connections,
            driver_stays=asked.driver_stays,
            profiles=asked.profile,
        )
        await stage.prepare()
        results = Results(plane.folder / launch.RESULTS, asked)
        for nodes in asked.nodes:
            begun = time.monotonic()
            await machines.grow(nodes)
            await stage.quiet()
            say(f"{nodes} nodes are there after {time.monotonic() - begun:.0f} s")
            await measure(stage, variants, asked, results)


async def measure(stage: Stage, variants: list[str], asked: argparse.Namespace, results: Results) -> None:
    """Measure one size of cluster."""
    modes = options.MODES if asked.mode == "all" else (asked.mode,)
    if "burst" in modes:
        bursts = []
        for number in range(asked.rounds):
            for variant in variants:
                each = await burst(stage, variant, f"r{number}", asked.pods)
                say(f"round {number + 1} of {asked.rounds}, {variant}: {each['pods_per_s']:.1f} pods/s")
                bursts.append(each)
                results.add("burst", each)
        say(report.bursts(bursts, stage.drivers))
    if "steady" in modes:
        streams = []
        for variant in (name for name in variants if name in (*stage.drivers, "count")):
            say(f"{asked.rate:g} pods/s for {asked.seconds:g} s, {variant}")
            streams.append(await steady(stage, variant, rate=asked.rate, seconds=asked.seconds))
            results.add("steady", streams[-1])
        if streams:
            say(report.steadies(streams))
    if "start" in modes:
        starts = []
        for number in range(asked.rounds + 1):
            for variant in stage.drivers:
                each = await starting(stage, variant)
                if number:  # the first one fills the caches of files and bytecode
                    starts.append(each)
                    results.add("start", each)
        say(report.starts(starts))
    if "writes" in modes:
        for variant in stage.drivers:
            costs = await writes(stage, variant, asked.pods)
            for each in costs:
                results.add("writes", each)
            say(report.writes(costs))


class Results:
    """All figures in one file, complete after each measurement."""

    def __init__(self, file: Path, asked: argparse.Namespace) -> None:
        self._file = file
        self._content: dict[str, Any] = {
            "options": {key: str(value) for key, value in vars(asked).items()},
            "cores": os.cpu_count(),
        }

    def add(self, mode: str, figures: dict[str, Any]) -> None:
        """Write one more measurement."""
        self._content.setdefault(mode, []).append(figures)
        self._file.write_text(json.dumps(self._content, indent=1))


if __name__ == "__main__":
    launch.inside(main, options.parse)
