"""The garbage collector, the claim controller and the kubelets: what clears away after pods, later or never."""

from __future__ import annotations

import random
from typing import Final

from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Key
from tests.fakes.control_plane import cleanup, fit
from tests.simulator.loop import VirtualLoop
from tests.simulator.server import Server

KUBELET: Final = "kubernetes.io/kubelet"  # stands for the grace period of a pod that runs


class Housekeeping:
    """Everything that follows from what others do, a while later.

    Attributes:
        paused_until: No claim is cleared away before.
        collects: Whether claims go with their owners; where not, the controller has to see to its own.
    """

    def __init__(self, server: Server, loop: VirtualLoop, rng: random.Random) -> None:
        self.paused_until = 0.0
        self.collects = True
        self._server, self._loop, self._rng = server, loop, rng
        self._planned = False
        server.listeners.append(self._happened)

    def delete_pod(self, key: Key) -> None:
        """Delete a pod as a user does: one that is bound takes its time to end."""
        pod = self._server.find(PODS, key[1], key[0])
        if pod is None:
            return
        if pod["spec"].get("nodeName") and not fit.finished(pod):
            self._server.edit(PODS, key, lambda pod: pod["metadata"].setdefault("finalizers", [KUBELET]))
            self._loop.call_later(self._rng.uniform(0.3, 3), self._ended, key, pod["metadata"]["uid"])
        self._server.remove(PODS, key)

    def _ended(self, key: Key, uid: str) -> None:
        pod = self._server.find(PODS, key[1], key[0])
        if pod is not None and pod["metadata"]["uid"] == uid:
            self._server.edit(PODS, key, lambda pod: pod["metadata"].pop("finalizers", None))

    def _happened(self, event: Event) -> None:
        if event.plural == PODS.plural and event.new is not None:
            pod = event.new
            if pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") == "Pending":
                self._loop.call_later(self._rng.uniform(0.1, 1.5), self._run, event.key, pod["metadata"]["uid"])
        self._plan(self._rng.uniform(0.05, 0.5))

    def _plan(self, after_s: float) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_later(after_s, self._clear)

    def _run(self, key: Key, uid: str) -> None:
        pod = self._server.find(PODS, key[1], key[0])
        if pod is not None and pod["metadata"]["uid"] == uid and pod.get("status", {}).get("phase") == "Pending":
            self._server.put(PODS, pod | {"status": pod["status"] | {"phase": "Running"}})

    def _clear(self) -> None:
        self._planned = False
        if self._loop.now < self.paused_until:
            self._plan(self.paused_until - self._loop.now)
            return
        cleanup.clean(self._server, self._server.all(RESOURCE_CLAIMS), collects=self.collects)
