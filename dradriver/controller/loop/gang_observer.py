"""Observes gangs that have not started: their members, their size, and their state. ``Dispatcher`` calls it.

To *observe* a gang is to read the states of its pods and claims from the cluster cache. The *agenda* lists the pods and
gangs that the controller processes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.api.claims.pins import Key
from dradriver.api.gangs.gang_owners import Alone, Rank
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.placing.gang_terms import in_order
from dradriver.controller.steps.gang_sizes import Sizes, done_of, size_of
from dradriver.controller.steps.observe import GangState, observe_gang
from dradriver.queue.agenda import Agenda
from dradriver.queue.pending import Member, PendingWorkload

LOOK_S: Final = 0.001  # from one look at a gang to the next, for each of its pods: each looks at all of them
LONGEST_LOOK_S: Final = 0.2


class GangObserver:
    """Observes gangs that have not started, with a pause between two observations of one gang.

    All pods and claims of a gang change while it starts. So one observation can cover many events.
    """

    def __init__(self, picture: Picture, agenda: Agenda, sizes: Sizes) -> None:
        """Make an observer that has observed no gang.

        Args:
            picture: The cluster cache.
            agenda: Takes the pods and gangs that have to be processed, now or later.
            sizes: Read how many pods the owner of a gang wants.
        """
        self._picture, self._agenda, self._sizes = picture, agenda, sizes
        self._later: set[Key] = set()

    def looks_later(self, workload: PendingWorkload, *, is_queued: bool) -> bool:
        """Return whether a gang is observed later, because the last time was too recent.

        The later observation covers all events in between. A gang in the queue (``is_queued``) is always observed now,
        because a plan needs its current state.
        """
        if is_queued or asyncio.get_running_loop().time() >= workload.look_again_at:
            self._later.discard(workload.key)
            return False
        if workload.key not in self._later:
            self._later.add(workload.key)
            self._agenda.add_at(workload.look_again_at, workload.key)
        return True

    def look_now(self, workloads: Mapping[Key, PendingWorkload]) -> None:
        """Put all gangs whose observation was put off on the agenda now.

        ``workloads`` are all workloads, by key.
        """
        for key in self._later:
            if (workload := workloads.get(key)) is not None:
                workload.look_again_at = 0.0
            self._agenda.add(key)
        self._later.clear()

    def forget(self, key: Key) -> None:
        """Cancel the later observation of a gang that ``looks_later`` has arranged."""
        self._later.discard(key)

    def gathered(
        self, workload: PendingWorkload | None, key: Key, alone: Sequence[Member]
    ) -> tuple[PendingWorkload, bool]:
        """Return a gang's workload, and whether its pods or their requests have changed.

        The workload has the gang's current pods. An existing workload is updated in place. So other modules can keep
        their references to it.

        Args:
            workload: The gang's workload so far; None if it has none.
            key: The gang.
            alone: Members that were single workloads so far. The gang gets the same ``Member`` objects, because they
                have what the controller remembers of the pods.
        """
        known = {member.uid: member for member in (*alone, *(() if workload is None else workload.members))}
        members: list[tuple[Member, Rank | None]] = []
        is_changed = bool(alone)
        for pod_key in self._picture.gangs.pods(key):
            pod = self._picture.pods[pod_key]
            template, volumes = self._picture.templates.of(pod), self._picture.volumes.of(pod)
            unknown = self._picture.only_scheduler_knows(pod)
            if (member := known.get(pod.metadata.uid)) is None:
                member, is_changed = Member(pod, template, volumes, unknown), True
            elif member.update(pod, template, volumes, unknown):
                is_changed = True
            member.near = key[1]
            members.append((member, self._picture.gangs.rank(pod_key)))
        ordered = in_order(members)
        if workload is None:
            return PendingWorkload(*ordered, key=key), True
        is_changed = is_changed or len(ordered) != len(workload.members)
        workload.members = ordered
        return workload, is_changed

    def observe(self, workload: PendingWorkload) -> GangState | None:
        """Return a gang's state; None until it is known whether the gang barrier works.

        The gang barrier keeps the pods of a gang unbound until all have places. The result is also None if the owner
        says that the pods are no gang. Each pod is then a workload of its own.
        """
        now = asyncio.get_running_loop().time()
        workload.look_again_at = now + min(LONGEST_LOOK_S, LOOK_S * len(workload.members))
        if self._picture.barrier is None:
            return None  # it is looked at again once that is known
        said = self._picture.gangs.said(workload.key)
        size = size_of(workload.key, said, self._sizes)
        if isinstance(size, Alone):
            for pod in self._picture.gangs.dissolve(workload.key):
                self._agenda.add(pod)
            return None
        done = done_of(self._picture.gangs, said, self._sizes)
        return observe_gang(workload, self._picture, size, now, done=done)
