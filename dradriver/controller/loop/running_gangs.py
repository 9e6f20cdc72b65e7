"""Decides for gangs that run whether all pods are restarted because some were lost. ``Dispatcher`` calls it.

The *owner* of a gang is the object that creates its pods, such as a Job. A gang *runs* once one of its pods is bound or
may be bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.owners.owner_restarts import AGAIN_S
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.gang_running import Anew, running_step
from dradriver.controller.steps.gang_sizes import Sizes, done_of, size_of
from dradriver.queue.agenda import Agenda


class Restarts(Protocol):
    """Restarts gangs through their owners."""

    def ask(self, gang: Key, pods: Sequence[Pod], reason: str) -> str:
        """Request the restart of a gang; return why it is impossible, or an empty text.

        A gang is restarted only once for the same pods. When the result for these pods changes, the gang is processed
        again.

        Args:
            gang: The gang.
            pods: Its living pods.
            reason: The text that is written on the gang's owner.
        """


class RunningGangs:
    """Restarts running gangs that lost pods, and knows which gangs are being restarted."""

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        sizes: Sizes,
        restarts: Restarts,
        deadlines: Deadlines,
    ) -> None:
        """Begin without running gangs.

        Args:
            picture: The cluster cache.
            agenda: Takes the gangs that have to be processed later.
            sizes: Read the number of pods that the owner of each gang wants.
            restarts: Restarts gangs.
            deadlines: Says how long the scheduler may take to allocate a gang's claims.
        """
        self._picture, self._agenda, self._sizes, self._restarts = picture, agenda, sizes, restarts
        self._deadlines = deadlines
        self._since: dict[Key, float] = {}  # by gang: when it was first seen to have started
        self._leaving: set[Key] = set()

    def look(self, gang: Key) -> None:
        """Process a running gang: restart it if it lost pods that it needs."""
        now = asyncio.get_running_loop().time()
        gangs = self._picture.gangs
        pods = [self._picture.pods[pod] for pod in gangs.pods(gang)]
        membership = gangs.said(gang)
        size = size_of(gang, membership, self._sizes)
        restarts = membership.wants is not None and membership.wants.restarts
        claims = (self._picture.claim_of(pod) for pod in pods)
        planned_sizes = [claim.planned.size for claim in claims if claim is not None and claim.planned is not None]
        # 1. With how few living pods the gang can run. A gang that restarts on a loss needs all pods of its plan, even
        #    if it can begin with fewer. Pods that have succeeded are not needed any more.
        least = max(planned_sizes, default=1) - gangs.done(gang)
        if isinstance(size, tuple) and not restarts:
            fewest = size[0] - done_of(gangs, membership, self._sizes)
            # The owner's size can include pods without GPUs. They are not part of the plan, and their loss is no loss.
            least = min(fewest, least) if planned_sizes else fewest

        # 2. What the loss leads to.
        step = running_step(
            pods,
            self._picture,
            least,
            now,
            restarts=restarts,
            since=self._since.setdefault(gang, now),
            deadlines=self._deadlines,
        )
        self._leaving.discard(gang)
        if isinstance(step, Anew):
            self.anew(gang, pods, step.reason)
        elif step.until is not None:
            self._agenda.add_at(step.until, gang)

    def anew(self, gang: Key, pods: Sequence[Pod], reason: str) -> None:
        """Ask the owner of a gang to restart the gang.

        If that is impossible now, the gang is processed again later. ``reason`` is written on the owner.
        """
        if not self._restarts.ask(gang, pods, reason):
            self._leaving.add(gang)
        else:
            # The restart can be refused now or in a moment. It may be permitted later.
            self._agenda.add_at(asyncio.get_running_loop().time() + AGAIN_S + 1, gang)

    def leaves(self, gang: Key) -> bool:
        """Return whether a running gang is being restarted. Then its pods get no places."""
        return gang in self._leaving

    def forget(self, gang: Key) -> None:
        """Forget that a gang ran, because it is gone or waits to start again."""
        self._since.pop(gang, None)
        self._leaving.discard(gang)
