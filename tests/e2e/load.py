"""Pods with claims that come and go on every node while something is done to the driver."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Final

from dradriver.api.base import names
from tests import deploy
from tests.e2e.kubectl import Namespace, pod

NVLINK: Final = {names.POLICY: "nvlink"}
ANY: Final = {names.POLICY: "best-effort"}
SHARE: Final = {names.SHARE: "0.25"}
SLICE: Final = {names.MIG_PROFILE: "1g.10gb"}
_PARTS: Final = 3  # the worker whose pods have parts of GPUs, on node-b


class Load:
    """Pods with claims that come and go on every node, until the end."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._ended = Event()
        self.done: list[str] = []

    def _work(self, worker: int) -> None:
        number = 0
        while not self._ended.is_set():
            name = f"w{worker}-{number}"
            node = sorted(deploy.MACHINES)[worker % len(deploy.MACHINES)]
            gpus, words = (1, (SHARE, SLICE)[number % 2]) if worker == _PARTS else (1 + number % 2, ANY)
            self._namespace.apply(pod(name, gpus=gpus, words=words, node=node))
            self._namespace.wait_running(name)
            self._namespace.delete(name)
            self.done.append(name)
            number += 1

    @contextmanager
    def going_on(self, workers: int = 4) -> Iterator[None]:
        with ThreadPoolExecutor(workers) as pool:
            working = [pool.submit(self._work, worker) for worker in range(workers)]
            try:
                yield
            finally:
                self._ended.set()
            for one in working:
                one.result()


def failures(namespace: Namespace) -> list[str]:
    """What the kubelets said of claims that could not be prepared or given back: when, of which pod, and why."""
    return [
        f"{event['firstTimestamp']} {event['involvedObject']['name']}: {event['message']}"
        for event in namespace.list("events")
        if "DynamicResources" in str(event.get("reason"))
    ]


def driver_events(namespace: Namespace) -> str:
    """What happened to the driver's pods, for the message of a test that fails."""
    return namespace.cluster.kubectl(
        *("-n", deploy.NAMESPACE, "get", "events", "--sort-by=.lastTimestamp", "--no-headers", "-o"),
        "custom-columns=F:.firstTimestamp,L:.lastTimestamp,C:.count,N:.involvedObject.name,M:.message",
    ).stdout
