"""Looks at gangs that run: places for those of their pods that came later, and whether all have to start anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.picture import Picture
from dradriver.cluster.records.placement import Placement
from dradriver.controller.owners.owner_restarts import AGAIN_S
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.plan import GangTerms, plan
from dradriver.controller.steps.gang_running import Anew, running_step
from dradriver.controller.steps.gang_sizes import Sizes, done_of, size_of
from dradriver.controller.steps.gang_step import in_order
from dradriver.queue.agenda import Agenda
from dradriver.queue.caps import Left
from dradriver.queue.units import Unit


class Restarts(Protocol):
    """Starts gangs anew by the means of what made their pods."""

    def ask(self, gang: Key, pods: Sequence[Pod], reason: str) -> str:
        """Have all of a gang start anew, once for these pods. Returns why that cannot be; empty while it is under way.

        The gang is looked at again when either is known.
        """


FREE_S: Final = 5.0  # that a pod waits for the place that is kept for it: a scheduler keeps devices no longer


class RunningGangs:
    """All gangs that have started."""

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        sizes: Sizes,
        restarts: Restarts,
        *,
        promise_s: float,
    ) -> None:
        """Begin with none.

        Args:
            picture: The cluster.
            agenda: Takes the gangs that have to be looked at later.
            sizes: Say how many pods the owner of a gang wants.
            restarts: Starts gangs again.
            promise_s: See ``Deadlines``.
        """
        self._picture, self._agenda, self._sizes, self._restarts = picture, agenda, sizes, restarts
        self._promise_s = promise_s
        self._since: dict[Key, float] = {}  # when each was first seen to have started
        self._leaving: set[Key] = set()

    def look(self, gang: Key) -> None:
        """See whether a gang has to start anew."""
        now = asyncio.get_running_loop().time()
        gangs = self._picture.gangs
        pods = [self._picture.pods[pod] for pod in gangs.pods(gang)]
        said = gangs.said(gang)
        size = size_of(gang, said, self._sizes)
        restarts = said.wants is not None and said.wants.restarts
        claims = (self._picture.claim_of(pod) for pod in pods)
        planned = [claim.planned.size for claim in claims if claim is not None and claim.planned is not None]
        # One that starts anew misses every pod, however few it may begin with.
        least = max(planned, default=1) - gangs.done(gang)
        if isinstance(size, tuple) and not restarts:
            fewest = size[0] - done_of(gangs, said, self._sizes)
            least = min(fewest, least) if planned else fewest  # a pod without GPUs that comes and goes is no loss
        step = running_step(
            pods,
            self._picture,
            least,
            now,
            restarts=restarts,
            since=self._since.setdefault(gang, now),
            promise_s=self._promise_s,
        )
        self._leaving.discard(gang)
        if isinstance(step, Anew):
            self.anew(gang, pods, step.reason)
        elif step.until is not None:
            self._agenda.add_at(step.until, gang)

    def anew(self, gang: Key, pods: Sequence[Pod], reason: str) -> None:
        """Have a gang start anew, if that can be."""
        if not self._restarts.ask(gang, pods, reason):
            self._leaving.add(gang)
        else:
            # What is refused, a moment from now, may be permitted then.
            self._agenda.add_at(asyncio.get_running_loop().time() + AGAIN_S + 1, gang)

    def leaves(self, gang: Key) -> bool:
        """Return whether all pods of a gang are about to go, so that none of them need be given a place."""
        return gang in self._leaving

    def forget(self, gang: Key) -> None:
        """Forget that a gang ran."""
        self._since.pop(gang, None)
        self._leaving.discard(gang)

    def late(self, unit: Unit, left: Left) -> Placement:
        """Return a place for a pod that comes to a gang which has started: near the others, as if it had been there.

        Args:
            unit: The pod.
            left: What its tenant's cap leaves to it.

        Raises:
            NoPlaceError: There is none.
            WordError: What a pod of the gang asks for cannot be read.
        """
        of = self._picture.gangs.of(unit.key)
        assert of is not None, "its own words say so"
        pods = (self._picture.pods[key] for key in self._picture.gangs.pods(of.gang))
        members = (
            unit.lead if pod.metadata.uid == unit.lead.uid else gang_plan.placed(self._picture, pod) for pod in pods
        )
        some = [(member, self._picture.gangs.rank(member.key)) for member in members if member is not None]
        kept = self._picture.kept_places.ready(of)
        snapshot = left.snapshot
        if kept is not None and snapshot.is_plain:
            # Only looked at: giving it up and keeping it again would wake all who wait, this pod too, and again.
            snapshot = snapshot.without([kept.claim], own=True)

        def among(avoid: tuple[str, ...]) -> Placement:
            home = {} if kept is None else {unit.lead: kept}
            gang = GangTerms(of.wants, of.member.identity, home=home, late=unit.lead)
            return plan(snapshot.avoiding(avoid), in_order(some), gang)[unit.lead]

        try:
            place = self._somewhere(unit, among)
        except NoPlaceError as error:
            raise NoPlaceError(error.stable, cause=error.cause) from None
        if kept is not None or (kept := self._picture.kept_places.find(of.gang, of.member.rank)) is not None:
            self._picture.kept_places.let_go(kept)
        if place.planned is not None:
            self._picture.kept_places.trim(of.gang, place.planned.size - len(some))
        return msgspec.structs.replace(place, seat=False)  # nobody waits for it to be bound with others

    def comes_free(self, unit: Unit, now: float) -> bool:
        """Return whether the place that is kept for a pod which comes late is about to be free: for a moment it waits.

        The lost pod is gone, and its claim goes with it: a StatefulSet makes another pod of that name before.
        """
        of = self._picture.gangs.of(unit.key)
        kept = None if of is None else self._picture.kept_places.find(of.gang, of.member.rank)
        claim = None if kept is None else self._picture.claims.get(kept.claim)
        lost = None if kept is None else self._picture.pods.get(kept.pod)
        if claim is None or not claim.devices or (lost is not None and claim.owned_by(lost.metadata.uid)):
            return False
        return now < unit.looks_since(now) + FREE_S

    @staticmethod
    def _somewhere(unit: Unit, among: Callable[[tuple[str, ...]], Placement]) -> Placement:
        """Return a place on nodes on which the pod was not tried; on those that were, once it was tried on all."""
        if tried := tuple(unit.failures.tried):
            with contextlib.suppress(NoPlaceError):
                return among(tried)
        place = among(())
        unit.failures.begin_again()
        return place
