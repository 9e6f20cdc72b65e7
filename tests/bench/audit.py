"""What looks at all of the controller's books cost: ``python -m tests.bench.audit [--nodes N] [--pods M]``.

The books of N nodes with 8 GPUs each, all held by claims, and of M foreign pods; one audit, and one count of the
figures for metrics: the CPU time, and for how much of that the loop is held at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.audit import PERIOD_S, Audit, Shown
from dradriver.controller.controller import sources
from dradriver.controller.loop.cluster_gauges import PERIOD_S as COUNT_S
from dradriver.controller.loop.cluster_gauges import Figures
from dradriver.kube.reflector import Change
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dradriver.process import cyclic_gc
from tests.fakes.gpucluster import GpuCluster

if TYPE_CHECKING:
    from dradriver.controller.writing.reasons import Reasons

T = TypeVar("T")


def cluster(nodes: int, pods: int) -> tuple[Picture, Shown]:
    """Return a picture of so many nodes and foreign pods, and what it was made from."""
    picture = Picture(lambda _: None, lambda: None)
    one = GpuCluster()
    one.node("n")
    (node,), pieces = one.all(NODES), one.all(RESOURCE_SLICES)
    names = [gpu.uuid.lower() for gpu in one.machines["n"].gpus]
    shown: dict[Resource, dict[tuple[str, str], Any]] = {source.resource: {} for source in sources()}
    by_kind = {source.resource: source for source in reversed(sources())}  # of slices our own's

    def put(resource: Resource, obj: dict[str, Any]) -> None:
        obj["metadata"] |= {"uid": obj["metadata"]["name"], "resourceVersion": "1"}
        found = by_kind[resource].read(msgspec.Raw(json.dumps(obj).encode()))
        key = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        shown[resource][key] = found
        by_kind[resource].changed(picture, Change(key, None, found))

    for number in range(nodes):
        name = f"n{number}"
        put(NODES, node | {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        for place, piece in enumerate(pieces):
            pool = piece["spec"]["pool"] | {"name": name}
            spec = piece["spec"] | {"pool": pool, "nodeName": name}
            put(RESOURCE_SLICES, piece | {"metadata": piece["metadata"] | {"name": f"{place}-{name}"}, "spec": spec})
        for half in (names[:4], names[4:]):
            results = [{"driver": "gpu.topology", "pool": name, "device": device} for device in half]
            metadata = {"name": f"{name}-{half[0]}", "namespace": "a"}
            put(RESOURCE_CLAIMS, {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}})
    container = {"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "1Mi"}}}
    for number in range(pods):
        metadata = {"name": f"p{number}", "namespace": "b"}
        put(PODS, {"metadata": metadata, "spec": {"nodeName": f"n{number % nodes}", "containers": [container]}})
    return picture, list(shown.items())


async def measure(picture: Picture, look: Callable[[], Awaitable[T]]) -> tuple[T, float, float]:
    """Return what a look finds, its CPU time and the longest time that it holds the loop, in seconds."""
    loop, longest, last = asyncio.get_running_loop(), 0.0, 0.0
    ended = asyncio.Event()

    async def beat() -> None:
        nonlocal longest, last
        last = time.process_time()
        while not ended.is_set():
            await asyncio.sleep(0)
            now = time.process_time()
            longest, last = max(longest, now - last), now

    _ = picture.inventory.fleet
    cyclic_gc.settle()  # as the controller does
    beating = loop.create_task(beat())
    await asyncio.sleep(0)
    began = time.process_time()
    found = await look()
    took = time.process_time() - began
    ended.set()
    await beating
    return found, took, longest


def main(arguments: Sequence[str]) -> int:
    """Measure and print one line."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.audit")
    options.add_argument("--nodes", type=int, default=5000)
    options.add_argument("--pods", type=int, default=150_000)
    given = options.parse_args(arguments)
    picture, shown = cluster(given.nodes, given.pods)
    print(f"{given.nodes} nodes, {given.pods} foreign pods")
    figures = Figures(picture, cast("Reasons", SimpleNamespace(told=list)))
    found, took, longest = asyncio.run(measure(picture, Audit(picture, shown).look))
    _said(f"audit, {found} differences", took, PERIOD_S, longest)
    asyncio.run(figures.count())  # the sets of a kind of machine are counted once
    _, took, longest = asyncio.run(measure(picture, figures.count))
    _said("figures", took, COUNT_S, longest)
    return 0


def _said(what: str, took_s: float, period_s: float, longest_s: float) -> None:
    cost = f"{1000 * took_s:.0f} ms of CPU every {period_s:g} s"
    print(f"{what}: {cost}, the loop is held {1000 * longest_s:.1f} ms at most")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
