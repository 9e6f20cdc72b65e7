"""The one worker: a pass over all pods that wait, whenever something changed that can make a place for one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dradriver.api.objects import Pod
from dradriver.controller import metrics
from dradriver.controller.choosing import Chooser
from dradriver.controller.cluster import Cluster
from dradriver.controller.collecting import Collector
from dradriver.controller.placing import Placer
from dradriver.controller.renewing import Renewer
from dradriver.controller.writing import MovedOnError, Writer, in_trouble
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, Unreachable

logger = logging.getLogger(__name__)

SWEEP_S: Final = 10.0
MOST_REASONS: Final = 100  # reasons written in one pass: thousands of waiting pods must not flood the API server
_FIRST_BACKOFF_S: Final = 0.1
_LONGEST_BACKOFF_S: Final = 30.0


class Worker:
    """Places, renews and collects, one thing at a time and always in the same order.

    One worker is enough: a placement is two writes, and kube-scheduler binds no faster. Oldest pods come first; a pod
    that finds no place does not hold up the ones behind it.
    """

    def __init__(
        self, client: Client, *, patience_s: float = 5.0, grace_s: float = 10.0, debounce_s: float = 0.01
    ) -> None:
        """Make a worker with an empty picture of the cluster, for reflectors to fill.

        Args:
            client: The API server.
            patience_s: How long a lifted pod may be unschedulable before its claim is moved to another of its nodes.
            grace_s: How long a claim may outlive its pod.
            debounce_s: How long to wait for more after something changed.
        """
        self._woken = asyncio.Event()
        self.cluster = Cluster(self._woken.set)
        self._chooser = Chooser(self.cluster)
        writer = Writer(client, self.cluster)
        self._writer = writer
        self._placer = Placer(self.cluster, self._chooser, writer)
        self._renewer = Renewer(self.cluster, self._chooser, writer, patience_s=patience_s)
        self._collector = Collector(client, self.cluster, writer, grace_s=grace_s)
        self._debounce_s = debounce_s
        self._sweep_at = 0.0
        self._reasons = 0
        self._again_s: float | None = None

    async def run(self) -> None:
        """Work until cancelled. What fails is tried again, with growing pauses while the API server is away."""
        backoff_s = _FIRST_BACKOFF_S
        self._sweep_at = 0.0
        while True:
            try:
                wait_s = await self.step()
                backoff_s = _FIRST_BACKOFF_S
            except (ApiError, Unreachable) as error:
                logger.warning("trying again in %g s: %s", backoff_s, error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            await asyncio.sleep(self._debounce_s)

    async def step(self) -> float:
        """Do all there is to do now. Returns the seconds after which to look again even if nothing happens.

        Raises:
            ApiError: The server is not able to answer, or this controller lacks a right.
            Unreachable: There is no server.
        """
        self._woken.clear()
        self._chooser.begin()
        self._reasons, self._again_s = 0, None
        cluster = self.cluster
        self._renewer.keep({cluster.pods[key].metadata.uid for key in cluster.lifted})
        # Lifted pods first: what they are owed must not be promised to others.
        for pod in list(cluster.in_order(cluster.lifted)):
            await self._attempt(pod, cluster.lifted, self._look)
        for pod in list(cluster.in_order(cluster.waiting)):
            await self._attempt(pod, cluster.waiting, self._placer.place)
        now = asyncio.get_running_loop().time()
        if now >= self._sweep_at:
            await self._collector.sweep()
            self._sweep_at = now + SWEEP_S
        metrics.WAITING.set(len(cluster.waiting))
        self._look_after(self._sweep_at - now)
        assert self._again_s is not None
        return max(0.0, self._again_s)

    async def _attempt(self, pod: Pod, among: set[tuple[str, str]], action: Callable[[Pod], Awaitable[None]]) -> None:
        key = pod.metadata.namespace, pod.metadata.name
        now = self.cluster.pods.get(key)
        if key not in among or now is None:
            return  # placed, bound or deleted while the pods before it were worked on
        try:
            await action(now)
        except MovedOnError as error:
            logger.info("pod %s/%s: %s; looking again", *key, error)
            self._look_after(1.0)  # at the latest: the change itself wakes the worker
        except ApiError as error:
            if in_trouble(error):
                raise
            # A quota, an admission policy or validation refused this pod's claim; the next pod may fare better.
            logger.warning("pod %s/%s: %s", *key, error)
            self._look_after(_LONGEST_BACKOFF_S)
            await self._tell(now, error.message or str(error))
        except Unreachable:
            raise
        except DriverError as error:
            await self._tell(now, str(error))

    async def _look(self, pod: Pod) -> None:
        wait_s = await self._renewer.look(pod)
        if wait_s is not None:
            self._look_after(wait_s)

    async def _tell(self, pod: Pod, reason: str) -> None:
        if self._reasons >= MOST_REASONS:
            self._look_after(1.0)
            return
        try:
            self._reasons += await self._writer.tell(pod, reason)
        except ApiError as error:
            if in_trouble(error):
                raise
            logger.warning("pod %s/%s: no reason written: %s", pod.metadata.namespace, pod.metadata.name, error)
            self._look_after(_LONGEST_BACKOFF_S)

    def _look_after(self, wait_s: float) -> None:
        self._again_s = wait_s if self._again_s is None else min(self._again_s, wait_s)
