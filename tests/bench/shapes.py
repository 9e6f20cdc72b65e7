"""What a node costs others that describes another machine all the time: ``python -m tests.bench.shapes [--at-once]``.

The controller's worker in this process, over an API server that answers at once. 200 nodes of eight GPUs; a pod of four
comes every 50 ms, is bound and ends. First alone; then beside a node that publishes, every second, 16 GPUs with links
of all widths, no two machines alike. ``--at-once`` makes tables in the loop instead of beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from pathlib import Path
from typing import Any, cast

import msgspec

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus.tabulating import Tabulator
from dradriver.cluster.records import records, slice_records
from dradriver.controller.controller import Controller
from dradriver.controller.loop.worker import Worker
from dradriver.kube.client import Client
from dradriver.kube.reflector import Change
from dradriver.process import cyclic_gc
from dradriver.topology import machine_codec
from dradriver.topology.machine import Machine, PathType
from tests.bench import controller as bench
from tests.fakes import machines

HOSTILE = "hostile"
_EVERY_S = 0.05
_NEAR = [PathType.PIX, PathType.PXB, PathType.PHB, PathType.NODE, PathType.SYS]


def odd_machine(seed: int, gpus: int = 16) -> Machine:
    """Return a machine whose every two GPUs have another number of links."""
    rng = random.Random(seed)
    widths = rng.sample(range(1, gpus * gpus), gpus * (gpus - 1) // 2)
    pairs = [(a, b) for a in range(gpus) for b in range(a)]
    paths = [[PathType.SELF] * gpus for _ in range(gpus)]
    for a, b in pairs:
        paths[a][b] = paths[b][a] = rng.choice(_NEAR)
    return machines.build(
        HOSTILE, paths=paths, links=dict(zip(pairs, widths, strict=True)), numa=[gpu % 4 for gpu in range(gpus)],
        link_gbps=25.0, capability="8.0",
    )  # fmt: skip


class Load:
    """Pods that come, are placed, and go; and how late the loop is meanwhile."""

    def __init__(self, worker: Worker, client: bench.NullClient) -> None:
        self.worker, self.client = worker, client
        self.took_s: list[float] = []
        self.late_s: list[float] = []
        self.number = 0

    async def run(self, seconds: float) -> None:
        """Go on for so long."""
        self.took_s, self.late_s = [], []
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async with asyncio.TaskGroup() as tasks:
            lateness = tasks.create_task(self._lateness())
            while loop.time() < end:
                tasks.create_task(self._pod())
                await asyncio.sleep(_EVERY_S)
            await asyncio.sleep(3 if end else 0)
            lateness.cancel()

    async def _pod(self) -> None:
        self.number += 1
        obj = bench.pod(self.number, distinct=False)
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        begun = time.perf_counter()
        bench.bring(self.worker, self.client, obj)
        while self.client.pods[key]["spec"]["schedulingGates"]:
            await asyncio.sleep(0.001)
        self.took_s.append(time.perf_counter() - begun)
        await asyncio.sleep(0.5)
        claim = self.worker.picture.claims[key[0], f"gpus-{key[1]}"]
        self.worker.picture.pod_changed(Change(key, self.worker.picture.pods[key], None))
        self.worker.picture.claim_changed(Change(claim.key, claim, None))

    async def _lateness(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            self.late_s.append(time.perf_counter() - begun - 0.001)


def odd_slices(count: int) -> list[msgspec.Raw]:
    """Return so many slices of the hostile node, one after the other, as the API sends them."""
    (piece,) = resource_slices.build(machines.direct_mesh(16), node=HOSTILE, node_uid="u")
    found = []
    for generation in range(1, count + 1):
        piece["metadata"] |= {"uid": "u", "resourceVersion": str(generation)}
        piece["metadata"]["annotations"][names.MACHINE] = machine_codec.encode(odd_machine(generation))
        piece["spec"]["pool"]["generation"] = generation
        found.append(msgspec.Raw(msgspec.json.encode(piece)))
    return found


async def rewrite(worker: Worker, pieces: list[msgspec.Raw]) -> None:
    """Publish another machine every second, until cancelled."""
    found = bench.node(HOSTILE)
    worker.picture.node_changed(Change(("", HOSTILE), None, records.read_node(msgspec.Raw(msgspec.json.encode(found)))))
    before = None
    for piece in pieces:
        read = slice_records.read_slice(piece)
        assert read is not None
        worker.picture.slice_changed(Change(("", read.metadata.name), before, read))
        before = read
        await asyncio.sleep(1)


def _tell(what: str, load: Load) -> None:
    def line(values: list[float]) -> str:
        ms = sorted(value * 1e3 for value in values)
        return f"p50 {ms[len(ms) // 2]:.1f}, p99 {ms[len(ms) * 99 // 100]:.1f}, worst {ms[-1]:.1f} ms"

    print(
        f"{what}: {len(load.took_s)} pods placed in {line(load.took_s)}; loop late by {line(load.late_s)}", flush=True
    )


def _mib(what: str, pid: str = "self") -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith(what)).split()[1]) / 1024
    except (OSError, StopIteration):  # it has just ended
        return 0.0


async def _place_next_to(most: list[float]) -> None:
    """Note how large the processes become that this one has started: that of the tabulator."""
    while True:
        most += [_mib("VmHWM", pid) for pid in _children()]
        await asyncio.sleep(0.05)


def _children() -> list[str]:
    """Return the ids of the processes that this one has started."""
    found: list[str] = []
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found += children.read_text().split()
    return found


async def measure(seconds: float, nodes: int, *, at_once: bool) -> None:
    """Print the figures."""
    client = bench.NullClient()
    tabulator = None if at_once else Tabulator()
    worker = Controller(cast("Client", client), tables=tabulator).worker
    tasks: list[asyncio.Task[Any]] = []
    most = [0.0]
    if tabulator is not None:
        tasks.append(asyncio.create_task(tabulator.run()))
        tasks.append(asyncio.create_task(_place_next_to(most)))
    begun = time.perf_counter()
    bench.fill(worker, bench.raw_nodes(nodes))
    while not worker.picture.inventory.fleet.nodes:
        await asyncio.sleep(0.001)
    print(f"{nodes} nodes can be placed on after {time.perf_counter() - begun:.2f} s; RSS {_mib('VmRSS'):.0f} MiB")
    cyclic_gc.settle()
    tasks.append(asyncio.create_task(worker.run()))
    load = Load(worker, client)
    await load.run(3)
    await load.run(seconds)
    _tell("alone", load)
    tasks.append(asyncio.create_task(rewrite(worker, odd_slices(int(seconds) + 60))))
    await load.run(seconds)
    _tell("beside a node that describes another machine every second", load)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(f"RSS now {_mib('VmRSS'):.0f}, at most {_mib('VmHWM'):.0f} MiB, beside it at most {max(most):.0f} MiB")


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.shapes")
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--nodes", type=int, default=200)
    options.add_argument("--at-once", action="store_true", help="make tables in the loop")
    given = options.parse_args()
    asyncio.run(measure(given.seconds, given.nodes, at_once=given.at_once))


if __name__ == "__main__":
    main()
