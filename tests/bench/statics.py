"""What a static pod costs the controller where every pod asks for something else: CPU, and how long the loop is held.

``python -m tests.bench.statics [PODS ...]``. The first number of pods is what the others are compared with: the cost of
a pod should not grow with how many there are. The API server is a dictionary that answers after one to
ten milliseconds; five pods a namespace come, then all go, and at the end their templates are collected.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from typing import Any, cast

from dradriver.api.base import names
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod
from dradriver.api.claims.claim_templates import Template
from dradriver.api.claims.pins import Key
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.cluster.records.pod_records import Foreign, Static
from dradriver.controller.writing.template_writer import TemplateWriter
from dradriver.kube.client import Client
from dradriver.kube.reflector import Change

COUNTS = (1_000, 10_000)
EACH = 5  # pods of a namespace
ANSWER_S = (0.001, 0.01)
EVENT_S = 0.005  # later a reflector shows it
BURST, BURST_S = 20, 0.001  # pods that a reflector reads at once
LOOK_S = 0.01


class Server:
    """Templates, and nothing else: what the controller uses of a ``Client``."""

    def __init__(self) -> None:
        self.templates: dict[Key, Template] = {}
        self.template_writer = TemplateWriter(cast("Client", self), self.templates, grace_s=0.0)
        self._uids = itertools.count()
        self._random = random.Random(1)

    async def create(self, _: object, obj: dict[str, Any], *, namespace: str, **__: object) -> dict[str, Any]:
        await asyncio.sleep(self._random.uniform(*ANSWER_S))
        uid = str(next(self._uids))
        metadata = Metadata(namespace=namespace, name=obj["metadata"]["name"], uid=uid, resource_version=uid)
        self._show((namespace, metadata.name), Template(metadata, None, static=True))
        return obj | {"metadata": obj["metadata"] | {"uid": uid}}

    async def delete(self, _: object, name: str, *, namespace: str, **__: object) -> bool:
        await asyncio.sleep(self._random.uniform(*ANSWER_S))
        self._show((namespace, name), None)
        return True

    def _show(self, key: Key, new: Template | None) -> None:
        asyncio.get_running_loop().call_later(EVENT_S, self._event, key, new)

    def _event(self, key: Key, new: Template | None) -> None:
        old = self.templates.pop(key, None)
        if new is not None:
            self.templates[key] = new
        self.template_writer.template_changed(Change(key, old, new))


class Loop:
    """The longest time that nobody else got the event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LOOK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - began - LOOK_S)


def pod(number: int) -> Static:
    """Return a pod that asks for what no other does."""
    found = resolved.resolve(Annotations({names.PLACEMENT: "static", names.MIN_MEMORY: f"{number + 1}Mi"}), {"main": 4})
    note = resolved.write(found)
    return Static(
        namespace=f"team-{number // EACH}",
        name=f"pod-{number}",
        uid=f"uid-{number}",
        resource_version="1",
        node="",
        takes={},
        note=note,
        template=claim_alternatives.template_name(note),
    )


async def tell(server: Server, changes: list[Change[Pod | Foreign]]) -> None:
    for start in range(0, len(changes), BURST):
        for change in changes[start : start + BURST]:
            server.template_writer.pod_changed(change)
        await asyncio.sleep(BURST_S)


async def until(done: Any) -> None:
    while not done():
        await asyncio.sleep(0.001)


async def measure(count: int) -> tuple[float, float]:
    """Return CPU seconds a pod, and for how many seconds at most the loop was held."""
    server, loop = Server(), Loop()
    pods = {(one.namespace, one.name): one for one in map(pod, range(count))}
    began = time.process_time()
    tasks = [asyncio.create_task(server.template_writer.run()), asyncio.create_task(loop.watch())]
    await tell(server, [Change(key, None, one) for key, one in pods.items()])
    await until(lambda: len(server.templates) == count)
    await tell(server, [Change(key, one, None) for key, one in pods.items()])
    await until(lambda: not server.templates)
    spent = time.process_time() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return spent / count, loop.longest_s


def main() -> int:
    """Print the figures and return the process's exit status."""
    counts = [int(one) for one in sys.argv[1:]] or list(COUNTS)
    first = 0.0
    for count in counts:
        each_s, held_s = asyncio.run(measure(count))
        first = first or each_s
        print(
            f"{count:>6} distinct pods: {each_s * 1e3:.2f} ms of CPU a pod, {each_s / first:.2f} times as much as of "
            f"{counts[0]}; the loop was held for {held_s * 1e3:.0f} ms at most"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
