"""A controller that works by itself, and what can go wrong: writes of one namespace, the note of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from dradriver.api.base import names
from dradriver.kube.resources import PODS
from tests.fakes.gpucluster import GpuCluster

WEBHOOK = 'Internal error occurred: failed calling webhook "x.example.com": connection refused'


@asynccontextmanager
async def working(cluster: GpuCluster, *, see_s: float = 0.01) -> AsyncIterator[None]:
    """Let the controller work by itself, and see everything within ``see_s`` seconds."""

    async def see() -> None:
        while True:
            cluster.deliver()
            await asyncio.sleep(see_s)

    tasks = [asyncio.create_task(cluster.worker.run()), asyncio.create_task(see())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def refuse(
    cluster: GpuCluster, namespace: str, answer: Callable[[], Any], *, verbs: tuple[str, ...] = ("create", "patch")
) -> None:
    """Let every write in a namespace end in what ``answer`` raises, or after what it awaits."""
    client = cluster.client
    for verb in verbs:
        original = getattr(client, verb)

        async def write(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            if kwargs.get("namespace") == namespace:
                waited = answer()
                if waited is not None:
                    await waited
            return await original(*args, **kwargs)

        setattr(client, verb, write)


def raising(error: Exception) -> Callable[[], Any]:
    def answer() -> None:
        raise error

    return answer


def respell(cluster: GpuCluster, name: str, word: str) -> None:
    """Write the note of a pod as other JSON with the same meaning: with spaces, and with an escape in a word."""
    pod = cluster.get_pod(name)
    note = msgspec.json.format(pod["metadata"]["annotations"][names.REQUEST], indent=1)
    assert word in note
    note = note.replace(word, f"\\u{ord(word[0]):04x}{word[1:]}")
    annotations = pod["metadata"]["annotations"] | {names.REQUEST: note}
    cluster.put(PODS, pod | {"metadata": pod["metadata"] | {"annotations": annotations}})
