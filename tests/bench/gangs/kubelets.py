"""What the kubelets of nodes that are objects only would do to pods: they start, and end within their graces."""

from __future__ import annotations

import asyncio
import datetime
import random
from typing import Any

from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import PODS
from tests.bench.gangs.seen import Claim, Pod, Seen, now
from tests.bench.throughput.workloads import NAMESPACE


class Kubelets:
    """Every bound pod runs, as if since some time of the last hour; one that is told to end does so within its grace.

    As with a real kubelet the phase of a pod says first that its containers have ended, and then the pod goes.

    Attributes:
        told: When each pod was first seen told to end, by uid, by the clock of ``seen``.
        ended: When each of them was said to have ended, the same.
    """

    def __init__(self, client: Client, seen: Seen, rng: random.Random, tasks: asyncio.TaskGroup) -> None:
        """``tasks`` runs what is under way; ``rng`` says for how long pods have run, and how long they take to end."""
        self.told: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self._client, self._rng, self._tasks = client, rng, tasks
        self._started: set[str] = set()
        seen.changed.append(self._changed)

    def _changed(self, thing: Pod | Claim, there: bool) -> None:
        if not isinstance(thing, Pod) or not there or not thing.bound:
            return
        uid = thing.metadata.uid
        if thing.metadata.deletion_timestamp:
            if uid not in self.told:
                self.told[uid] = now()
                takes_s = self._rng.uniform(0, thing.spec.termination_grace_period_seconds)
                self._tasks.create_task(self._end(thing, takes_s))
        elif uid not in self._started and not thing.finished:
            self._started.add(uid)
            since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=self._rng.uniform(60, 3600))
            status = {"phase": "Running", "startTime": f"{since:%Y-%m-%dT%H:%M:%SZ}"}
            self._tasks.create_task(self._say(thing, status))

    async def _end(self, pod: Pod, takes_s: float) -> None:
        await asyncio.sleep(takes_s)
        self.ended[pod.metadata.uid] = now()
        await self._say(pod, {"phase": "Failed"})
        gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions"} | gone
        try:
            await self._client.connection.request("DELETE", PODS.path(NAMESPACE, pod.metadata.name), body=body)
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise

    async def _say(self, pod: Pod, status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        name = pod.metadata.name
        try:
            await self._client.patch(PODS, name, body, kind=PatchKind.MERGE, namespace=NAMESPACE, subresource="status")
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise
