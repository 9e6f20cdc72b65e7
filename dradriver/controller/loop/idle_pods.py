"""Tells pods that their GPUs do nothing, and where the cluster allows it ends those that ask for it.

All that has to outlive this process stands on the pods' claims: since when they are idle, by their nodes' agents, and
when they are to be ended. Whoever leads next goes on from there, once each agent has said anew that it is so.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, NoReturn

from dradriver.api.base.pods import Pod
from dradriver.api.claims import idleness
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.picture import Picture
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller import metrics
from dradriver.controller.owners.idle_writer import IdleWriter
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.steps import idle_units
from dradriver.controller.steps.idle_step import Quiet, Step, end_of, step
from dradriver.controller.steps.idle_units import Unit
from dradriver.controller.writing.outcome import RefusedError
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client
from dradriver.kube.events import Recorder, Reference

logger = logging.getLogger(__name__)

PERIOD_S: Final = 30.0
NOTICE_S: Final = 2700.0  # of no work after which any pod is told
MOST_MARKED: Final = 64  # units in one pass; two writes for each of their pods
MOST_ENDED: Final = 8
ANSWER_S: Final = 60.0  # for all that is written for one unit
LONGEST_ASKED_S: Final = 600.0  # that the server's wish to wait is heeded for
LOOKED_S: Final = 30.0  # for which the server's answer holds that a unit is idle: others may be ended slowly meanwhile
RUNNING: Final = "Running"

Say = Callable[[Pod, Literal["Normal", "Warning"], str], Awaitable[None]]
"""Writes an Event about a pod."""


def recorder(client: Client, *, instance: str) -> Say:
    """Return what writes an Event about a pod whose GPUs do nothing; ``instance`` is the replica that says so."""
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def say(pod: Pod, kind: Literal["Normal", "Warning"], text: str) -> None:
        about = Reference("Pod", pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        await events.record(about=about, type=kind, reason="IdleGPUs", message=text, action="Watching")

    return say


class IdlePods:
    """All pods whose claims their nodes' agents call idle."""

    def __init__(
        self,
        client: Client,
        picture: Picture,
        say: Say | None,
        *,
        ends: bool,
        clock: Callable[[], float] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """Know of nothing yet.

        Args:
            client: The API server.
            picture: The cluster.
            say: Writes an Event about a pod; None for none.
            ends: Whether pods that ask for it are warned and ended; else all are only told.
            clock: Gives seconds since the epoch; by default the system's.
            monotonic: Gives seconds that never go back; by default the system's.
        """
        self._picture, self._say, self._ends = picture, say, ends
        self._writer = IdleWriter(client, OwnerKinds(client), picture.pods)
        self._clock, self._monotonic = clock or time.time, monotonic or time.monotonic
        self._heard: dict[str, tuple[float, float | None]] = {}  # by a claim's uid what it said last, and when
        self._tried: dict[Key, float] = {}  # when something was last done for each unit
        self._told: dict[str, str] = {}  # by a pod's uid the last Event of each
        # By its first pod's uid: the server asks to wait so long before a unit is warned or ended.
        self._not_before: dict[str, float] = {}

    async def run(self) -> NoReturn:
        """Look again and again, until cancelled; what a predecessor heard counts for nothing."""
        self._heard.clear()
        while True:
            self.hear()
            await self.once()
            await asyncio.sleep(PERIOD_S)

    def hear(self) -> None:
        """Take note of which claims were said to be idle anew since the last time."""
        now, heard = self._monotonic(), dict[str, tuple[float, float | None]]()
        for claim in self._picture.claims.values():
            if claim.idle is not None:
                before = self._heard.get(claim.uid)
                same = before is not None and before[0] == claim.idle.seen
                # Of the first that this process sees nobody knows how old it is.
                heard[claim.uid] = (
                    before if before is not None and same else (claim.idle.seen, None if before is None else now)
                )
        self._heard = heard

    async def once(self) -> None:
        """Do what there is to do for each unit now; what goes wrong with one concerns no other."""
        self._not_before = {uid: at for uid, at in self._not_before.items() if self._monotonic() < at}
        units = list(idle_units.units(self._picture))
        every = ((unit, self._step(unit)) for unit in units)
        steps = {u.key: one for u, one in every if one is Step.TAKE_BACK or _uid(u) not in self._not_before}
        # Who was tried before comes after all others: those that cannot be ended are in nobody's way.
        units.sort(key=lambda unit: self._tried.get(unit.key, 0.0))
        marks = [unit for unit in units if steps.get(unit.key) in (Step.WARN, Step.TAKE_BACK)]
        ends = [unit for unit in units if steps.get(unit.key) is Step.END][:MOST_ENDED]
        for unit in marks[:MOST_MARKED]:
            await self._guarded(unit, self._mark(unit, steps[unit.key]))
        ripe: dict[Key, float] = {}  # since when the server's answer is known
        for unit in ends:
            await self._guarded(unit, self._look_again(unit, ripe))
        for unit in ends:
            now = {other.key: other for other in idle_units.units(self._picture)}  # some may work again meanwhile
            still = [now[one.key] for one in ends if one.key in now and self._is_ripe(now[one.key], ripe)]
            if any(one.key == unit.key for one in still):
                uids = {pod.metadata.uid for other in still for pod, _ in other.pods}
                await self._guarded(unit, self._end(now[unit.key], uids))
        for unit in units:
            if steps.get(unit.key) is Step.UNHEARD:
                logger.debug("%s/%s is not ended: its node's agent has not said anew that it is idle", *unit.key)
            await self._notice(unit)
        self._tried = {unit.key: self._tried[unit.key] for unit in units if unit.key in self._tried}
        there = {pod.metadata.uid for unit in units for pod, _ in unit.pods}
        self._told = {uid: text for uid, text in self._told.items() if uid in there}

    def _step(self, unit: Unit) -> Step:
        if self._ends:
            return step(map(self._quiet, unit.pods), self._clock())
        warned = any(claim is not None and claim.idle_end is not None for _, claim in unit.pods)
        return Step.TAKE_BACK if warned else Step.NOTHING

    def _quiet(self, member: tuple[Pod, ClaimRecord | None]) -> Quiet:
        pod, claim = member
        if claim is None:
            return Quiet(None, None, None, None)
        _, at = self._heard.get(claim.uid, (0.0, None))
        return Quiet(
            idle=claim.idle if pod.status.phase == RUNNING else None,
            timeout_s=idle_units.timeout_s(pod),
            end=claim.idle_end,
            heard_s=None if at is None else self._monotonic() - at,
        )

    async def _mark(self, unit: Unit, what: Step) -> None:
        """Warn all pods of a unit, or take their warnings back."""
        if what is Step.TAKE_BACK:
            for pod, claim in unit.pods:
                if claim is not None and claim.idle_end is not None:
                    await self._writer.mark(pod, claim, None)
                    await self._tell(
                        pod,
                        "Normal",
                        "it is not ended: not all GPUs of it, its gang or its job are known to be idle any more",
                    )
            return
        # One that was warned before the others is warned anew: all end together.
        end = datetime.datetime.fromtimestamp(end_of(map(self._quiet, unit.pods), self._clock()), datetime.UTC)
        for pod, claim in unit.pods:
            if claim is not None and claim.idle is not None:
                await self._writer.mark(pod, claim, end)
                await self._tell(
                    pod,
                    "Warning",
                    f"its GPUs have done nothing since {idleness.moment(claim.idle.since)}: it is ended at "
                    f"{idleness.written(end)} unless they work until then",
                )

    async def _look_again(self, unit: Unit, ripe: dict[Key, float]) -> None:
        asked = self._monotonic()
        if await self._writer.still_idle(unit):
            ripe[unit.key] = asked

    def _is_ripe(self, unit: Unit, ripe: Mapping[Key, float]) -> bool:
        """Return whether a unit is to end still, by what was heard and answered not too long ago."""
        asked = ripe.get(unit.key)
        return asked is not None and self._monotonic() - asked <= LOOKED_S and self._step(unit) is Step.END

    async def _end(self, unit: Unit, ripe: set[str]) -> None:
        since = max(claim.idle.since for _, claim in unit.pods if claim is not None and claim.idle is not None)
        why = f"its GPUs have done nothing since {idleness.moment(since)}"
        try:
            if not await self._writer.end(unit, why, ripe=ripe):
                return
        except RefusedError as error:
            self._wait(unit, error.retry_after_s)
            for pod, _ in unit.pods:
                await self._tell(pod, "Warning", f"{why}, but it is not ended: {error}")
            return
        metrics.IDLE_ENDED.inc(len(unit.pods))
        for pod, _ in unit.pods:
            await self._tell(pod, "Warning", f"ended: {why}")

    async def _notice(self, unit: Unit) -> None:
        """Tell pods that are idle for long, each once for as long as it lasts."""
        for pod, claim in unit.pods:
            idle = None if claim is None else claim.idle
            if idle is not None and self._clock() - idle.since >= NOTICE_S and pod.metadata.uid not in self._told:
                await self._tell(pod, "Normal", f"its GPUs have done nothing since {idleness.moment(idle.since)}")

    async def _tell(self, pod: Pod, kind: Literal["Normal", "Warning"], text: str) -> None:
        if self._told.get(pod.metadata.uid) != text:
            self._told[pod.metadata.uid] = text
            if self._say is not None:
                await self._say(pod, kind, text)

    def _wait(self, unit: Unit, seconds: float | None) -> None:
        """Do nothing for a unit for so long, as the server wishes."""
        if seconds:
            self._not_before[_uid(unit)] = self._monotonic() + min(seconds, LONGEST_ASKED_S)

    async def _guarded(self, unit: Unit, work: Awaitable[None]) -> None:
        self._tried[unit.key] = self._monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):
                await work
        except (DriverError, TimeoutError) as error:
            if isinstance(error, ApiError):
                self._wait(unit, error.retry_after_s)
            if not (isinstance(error, ApiError) and (error.conflict or error.not_found)):
                logger.warning("%s/%s, which is idle: %s; trying again", *unit.key, str(error) or "no answer")
        except Exception:
            logger.exception("%s/%s, which is idle: an error in this program; going on", *unit.key)


def _uid(unit: Unit) -> str:
    return unit.pods[0][0].metadata.uid
