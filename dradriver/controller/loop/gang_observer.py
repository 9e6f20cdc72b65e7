"""Looks at gangs that have not started: who is in them, how many they are to be, how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.api.claims.pins import Key
from dradriver.api.gangs.gang_owners import Alone, Rank
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.steps.gang_sizes import Sizes, done_of, size_of
from dradriver.controller.steps.gang_step import in_order
from dradriver.controller.steps.observe import GangState, observe_gang
from dradriver.queue.agenda import Agenda
from dradriver.queue.units import Member, Unit

LOOK_S: Final = 0.001  # from one look at a gang to the next, for each of its pods: each looks at all of them
LONGEST_LOOK_S: Final = 0.2


class GangObserver:
    """Observes gangs, each at most once in a while: all of its pods and claims change on the way to its start."""

    def __init__(self, picture: Picture, agenda: Agenda, sizes: Sizes) -> None:
        """Make one that has looked at none.

        Args:
            picture: The cluster cache.
            agenda: Takes the pods and gangs that have to be looked at, now or later.
            sizes: Say how many pods the owner of a gang wants.
        """
        self._picture, self._agenda, self._sizes = picture, agenda, sizes
        self._later: set[Key] = set()

    def looks_later(self, unit: Unit, *, is_queued: bool) -> bool:
        """Return whether a gang was looked at a moment ago: later it is looked at once for all that happens meanwhile.

        A gang that wants a place is never put off: it is asked with what is so now.
        """
        if is_queued or asyncio.get_running_loop().time() >= unit.look_again_at:
            self._later.discard(unit.key)
            return False
        if unit.key not in self._later:
            self._later.add(unit.key)
            self._agenda.add_at(unit.look_again_at, unit.key)
        return True

    def look_now(self, units: Mapping[Key, Unit]) -> None:
        """Have those looked at that would be later."""
        for key in self._later:
            if (unit := units.get(key)) is not None:
                unit.look_again_at = 0.0
            self._agenda.add(key)
        self._later.clear()

    def forget(self, key: Key) -> None:
        """Forget a gang."""
        self._later.discard(key)

    def gathered(self, unit: Unit | None, key: Key, alone: Sequence[Member]) -> tuple[Unit, bool]:
        """Return a gang as it is now, the same unit as before if there was one, and whether it changed.

        Args:
            unit: The unit that it was; None for none.
            key: The gang.
            alone: Members that each were a unit of its own; what is remembered of them stays.
        """
        known = {member.uid: member for member in (*alone, *(() if unit is None else unit.members))}
        members: list[tuple[Member, Rank | None]] = []
        is_changed = bool(alone)
        for pod_key in self._picture.gangs.pods(key):
            pod = self._picture.pods[pod_key]
            template, volumes = self._picture.templates.of(pod), self._picture.volumes.of(pod)
            if (member := known.get(pod.metadata.uid)) is None:
                member, is_changed = Member(pod, template, volumes), True
            elif member.update(pod, template, volumes):
                is_changed = True
            member.near = key[1]
            members.append((member, self._picture.gangs.rank(pod_key)))
        ordered = in_order(members)
        if unit is None:
            return Unit(*ordered, key=key), True
        is_changed = is_changed or len(ordered) != len(unit.members)
        unit.members = ordered
        return unit, is_changed

    def observe(self, unit: Unit) -> GangState | None:
        """Return how far a gang is; None if that is not known yet, or the pods turn out to be none."""
        now = asyncio.get_running_loop().time()
        unit.look_again_at = now + min(LONGEST_LOOK_S, LOOK_S * len(unit.members))
        if self._picture.barrier is None:
            return None  # it is looked at again once that is known
        said = self._picture.gangs.said(unit.key)
        size = size_of(unit.key, said, self._sizes)
        if isinstance(size, Alone):
            for pod in self._picture.gangs.dissolve(unit.key):
                self._agenda.add(pod)
            return None
        done = done_of(self._picture.gangs, said, self._sizes)
        return observe_gang(unit, self._picture, size, now, done=done)
