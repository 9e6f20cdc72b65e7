"""What changed, by units: finds or makes the unit of a pod or a gang, observes it, and has its next step done."""

from __future__ import annotations

import asyncio
import logging

from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller import metrics
from dradriver.controller.loop.gang_observer import GangObserver
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.loop.step_runner import StepRunner
from dradriver.controller.reading.prerequisites import Prerequisites
from dradriver.controller.steps.observe import observe
from dradriver.controller.writing.executor import OWN_ERROR, Executor
from dradriver.controller.writing.reasons import Reasons
from dradriver.event import Event
from dradriver.queue.agenda import Agenda
from dradriver.queue.lanes import Lanes
from dradriver.queue.unit_register import UnitRegister
from dradriver.queue.units import Member, Unit
from dradriver.queue.waiting import Queue

logger = logging.getLogger(__name__)


class Dispatcher:
    """One look at a time at one pod or gang.

    Attributes:
        looked: Tells which pod or gang was looked at.
    """

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        units: UnitRegister,
        queue: Queue,
        lanes: Lanes,
        reasons: Reasons,
        executor: Executor,
        runner: StepRunner,
        gangs: GangObserver,
        running: RunningGangs,
        prerequisites: Prerequisites,
    ) -> None:
        """Make one that has looked at nothing.

        Args:
            picture: The cluster.
            agenda: Takes what else has to be looked at, now or later.
            units: Units by pod or gang, kept up to date from now on.
            queue: Who waits.
            lanes: Who may be written now.
            reasons: Told why a pod waits.
            executor: Asks what became of a write.
            runner: Does what a step says.
            gangs: Observes gangs that have not started.
            running: Looks at those that have.
            prerequisites: Says what a pod needs before it can get a place.
        """
        self._picture, self._agenda, self._units, self._queue = picture, agenda, units, queue
        self._lanes, self._reasons, self._executor, self._runner = lanes, reasons, executor, runner
        self._gangs, self._running, self._prerequisites = gangs, running, prerequisites
        self.looked: Event[Key] = Event()

    def look(self, key: Key) -> None:
        """Look at a pod or a gang, whatever became of it. A bug that it meets costs it a pause, and no other."""
        try:
            self._look_at(key)
            self.looked(key)
        except Exception:
            logger.exception("pod %s/%s: an error in this program; trying again later", *key)
            if (unit := self._units.get(key)) is not None:
                self._queue.drop(key)
                self._executor.fail(unit, OWN_ERROR)

    def _look_at(self, key: Key) -> None:
        if key in self._picture.gangs:
            self._look_at_gang(key)
            return
        pod, unit = self._picture.pods.get(key), self._units.get(key)
        if pod is None or pod.finished or pod.metadata.deletion_timestamp is not None:
            self._forget(key)
            return
        gang = self._picture.gangs.of(key)
        if gang is not None and not self._picture.gangs.started(gang.gang):
            self._agenda.add(gang.gang)
            return
        self._prerequisites.request(pod)
        if (missing := self._prerequisites.missing(key, pod)) is not None:
            self._queue.drop(key)
            if missing.reason is not None:
                self._reasons.want(pod, missing.reason)
            if missing.look_after_s is not None:
                self._agenda.add_at(self._now() + missing.look_after_s, key)
            return
        where = self._picture.volumes.of(pod)
        if unit is None or unit.lead.uid != pod.metadata.uid:
            self._disband(key)
            unit = Unit(Member(pod, self._picture.templates.of(pod), where))
            unit.lead.near = "" if gang is None else gang.gang[1]
            self._units.add(unit)
        elif unit.busy:
            return  # its writer looks again when it is done
        elif unit.lead.update(pod, self._picture.templates.of(pod), where):
            unit.forgive()
        self._units.enter(unit)
        self._count(unit, unit.lead)
        if self._may_go_on(unit) and self._runner.run(unit, observe(unit.lead, self._picture, self._now())):
            self._forget(key)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _forget(self, key: Key) -> None:
        self._disband(key)
        self._reasons.forget(key)

    def _look_at_gang(self, key: Key) -> None:
        unit = self._units.get(key)
        if unit is not None and (unit.busy or self._gangs.looks_later(unit, is_queued=key in self._queue)):
            return  # its writer looks again when it is done
        pods = self._picture.gangs.pods(key)
        if self._picture.gangs.started(key):
            if unit is not None:  # it starts just now
                now = self._now()
                metrics.GANG_START.observe(now - unit.memory.gathered(len(unit.members), now).gathered_at)
                self._forget(key)
                for member in unit.members:  # what each was promised, and since when, stays known
                    is_waiting = self._picture.gangs.of(member.key) is not None and not member.pod.spec.node_name
                    if is_waiting and member.key not in self._units:
                        self._units.add(Unit(member))
            self._running.look(key)
            for pod in (one for one in pods if not self._picture.pods[one].spec.node_name):
                self._agenda.add(pod)
            return
        self._running.forget(key)
        for pod in pods:
            self._prerequisites.request(self._picture.pods[pod])
        alone = [one for pod in pods if (one := self._units.get(pod)) is not None]
        if any(one.busy for one in alone):
            return
        for one in alone:  # those that ran are gone
            self._disband(one.key)
        unit, is_changed = self._gangs.gathered(unit, key, [one.lead for one in alone])
        if is_changed:
            self._queue.drop(key)  # it requests something else, and may find a place now
            unit.forgive()
            self._units.add(unit)
        self._units.enter(unit)
        for member in unit.members:
            self._count(unit, member)
        if self._may_go_on(unit) and (state := self._gangs.observe(unit)) is not None:
            self._runner.run(unit, state)

    def _may_go_on(self, unit: Unit) -> bool:
        """Return whether a unit's pause is over, and what became of its last write is known."""
        if self._now() < unit.failures.not_before:
            self._queue.drop(unit.key)
            self._agenda.add_at(unit.failures.not_before, unit.key)
            return False
        if unit.unsure:
            if self._executor.can_write(unit):
                self._executor.ask(unit)
            return False
        return True

    def _disband(self, key: Key) -> None:
        """Forget a unit; what its pod was told, and when, stays known: it may be of another one from now on."""
        self._queue.drop(key)
        self._lanes.forget(key)
        unit = self._units.pop(key, None)
        if unit is not None and unit.unsure:
            self._executor.forget_claims(unit)  # if a claim is there all the same, the reflector shows it
        self._lanes.answered(key, bound=False)
        self._gangs.forget(key)
        self._running.forget(key)

    def _count(self, unit: Unit, member: Member) -> None:
        """Keep up to date who waits for a scheduler: no more who has a seat, and waits for others."""
        pod = member.pod
        claim = self._picture.claim_of(pod)
        seated = claim is not None and claim.seat is not None
        if pod.spec.node_name or pod.gated or claim is None or claim.deleting or seated or pod.refused is not None:
            self._lanes.answered(member.key, bound=bool(pod.spec.node_name) or seated)
        else:
            self._lanes.lifted(member.key, unit.scheduler)
