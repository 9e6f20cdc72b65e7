"""What changed, by units: finds or makes the unit of a pod or a gang, and hands it to the worker that looks at it."""

from __future__ import annotations

import asyncio
from typing import Final

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller import metrics
from dradriver.controller.loop.gang_worker import GangWorker
from dradriver.controller.loop.pod_worker import PodWorker
from dradriver.controller.loop.preemption import Preemptions
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.reading.prerequisites import Prerequisites
from dradriver.controller.writing.executor import Executor
from dradriver.controller.writing.reasons import Reasons
from dradriver.queue.agenda import Agenda
from dradriver.queue.kueue_entries import Entries
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.unit_register import UnitRegister
from dradriver.queue.units import Member, Unit
from dradriver.queue.waiting import Queue
from dradriver.queue.write_lanes import Lanes
from dradriver.reason import Cause, Reason

LEAVES_S: Final = 1.0  # between two looks whether a gang has to end still: whoever asked for it may do without
ANEW: Final = Reason(Cause.GANG, "waits until its gang has been started anew")


class Dispatcher:
    """One look at a time at one pod or gang: at all that is so whatever it asks for, before its worker looks at it."""

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        units: UnitRegister,
        tenants: Tenants,
        queue: Queue,
        lanes: Lanes,
        reasons: Reasons,
        executor: Executor,
        pods: PodWorker,
        gangs: GangWorker,
        running: RunningGangs,
        preemptions: Preemptions,
        prerequisites: Prerequisites,
    ) -> None:
        """Make one that has looked at nothing.

        Args:
            picture: The cluster.
            agenda: Takes what else has to be looked at, now or later.
            units: Units by pod or gang, kept up to date from now on.
            tenants: Say what the priority of a unit counts.
            queue: Who waits.
            lanes: Who may be written now.
            reasons: Told why a pod waits.
            executor: Asks what became of a write.
            pods: Looks at single pods, and at those of gangs that run.
            gangs: Looks at gangs that have not started.
            running: Looks at those that have.
            preemptions: Say which of those have to end.
            prerequisites: Requests the objects that a pod names.
        """
        self._picture, self._agenda, self._units, self._tenants = picture, agenda, units, tenants
        self._queue, self._lanes, self._reasons, self._executor = queue, lanes, reasons, executor
        self._pods, self._gangs, self._running, self._preemptions = pods, gangs, running, preemptions
        self._prerequisites = prerequisites
        self._entries = Entries(tenants)

    def look(self, key: Key) -> None:
        """Look at a pod or a gang, whatever became of it."""
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
        if self._waits(key, pod):
            return
        where = self._picture.volumes.of(pod)
        if unit is None or unit.lead.uid != pod.metadata.uid:
            self._disband(key)
            unit = Unit(Member(pod, self._picture.templates.of(pod), where), highest=self._tenants.highest(key[0]))
            unit.lead.near = "" if gang is None else gang.gang[1]
            self._units.note_created(pod.metadata.creation_timestamp)
            self._units[key] = unit
        elif unit.busy:
            return  # its writer looks again when it is done
        elif unit.lead.update(pod, self._picture.templates.of(pod), where):
            unit.forgive()
        self._entries.look(unit, self._units.newest)
        self._count(unit, unit.lead)
        if self._may_go_on(unit) and self._pods.look(unit):
            self._forget(key)

    def _forget(self, key: Key) -> None:
        self._disband(key)
        self._reasons.forget(key)

    def _look_at_gang(self, key: Key) -> None:
        unit = self._units.get(key)
        if unit is not None and (unit.busy or self._gangs.looks_later(unit)):
            return  # its writer looks again when it is done
        pods = self._picture.gangs.pods(key)
        if self._picture.gangs.started(key):
            if unit is not None:  # it starts just now
                now = asyncio.get_running_loop().time()
                metrics.GANG_START.observe(now - unit.gathered_at(now))
                self._forget(key)
                for member in unit.members:  # what each was promised, and since when, stays known
                    if self._picture.gangs.of(member.key) is not None and not member.pod.spec.node_name:
                        self._units.setdefault(member.key, Unit(member, highest=self._tenants.highest(key[0])))
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
        unit = self._units[key] = self._gangs.gathered(
            unit, key, [one.lead for one in alone], self._tenants.highest(key[0])
        )
        self._units.note_created(*(member.pod.metadata.creation_timestamp for member in unit.members))
        self._entries.look(unit, self._units.newest)
        for member in unit.members:
            self._count(unit, member)
        if self._may_go_on(unit):
            self._gangs.look(unit)

    def _may_go_on(self, unit: Unit) -> bool:
        """Return whether a unit's pause is over, and what became of its last write is known."""
        if asyncio.get_running_loop().time() < unit.failures.not_before:
            self._queue.drop(unit.key)
            self._agenda.add_at(unit.failures.not_before, unit.key)
            return False
        if unit.unsure:
            if self._lanes.writable(unit.key, unit.order):
                self._executor.ask(unit)
            return False
        return True

    def _waits(self, key: Key, pod: Pod) -> bool:
        """Return whether a pod stays at its gate whatever is free; what it was given already ends as ever."""
        gangs, volumes = self._picture.gangs, self._picture.volumes
        unread, gang = volumes.unread_of(pod), gangs.of(key)
        leaves = gang is not None and (self._running.leaves(gang.gang) or self._preemptions.leaves(gang.gang))
        why = ANEW if leaves else gangs.waits(key) or (None if unread else self._picture.lacking_of(pod))
        if not ((why or unread) and pod.gated and self._picture.claim_of(pod) is None):
            return False
        self._queue.drop(key)
        if why is not None:
            self._reasons.want(pod, why)
        if leaves:
            self._agenda.add_at(asyncio.get_running_loop().time() + LEAVES_S, key)
        return True

    def _disband(self, key: Key) -> None:
        """Forget a unit; what its pod was told, and when, stays known: it may be of another one from now on."""
        self._queue.drop(key)
        self._lanes.forget(key)
        unit = self._units.pop(key, None)
        if unit is not None and unit.unsure:
            self._executor.release(unit)  # if a claim is there all the same, the reflector shows it
        self._lanes.answered(key, bound=False)
        self._gangs.forget(key)

    def _count(self, unit: Unit, member: Member) -> None:
        """Keep up to date who waits for a scheduler: no more who has a seat, and waits for others."""
        pod = member.pod
        claim = self._picture.claim_of(pod)
        seated = claim is not None and claim.seat is not None
        if pod.spec.node_name or pod.gated or claim is None or claim.deleting or seated or pod.refused is not None:
            self._lanes.answered(member.key, bound=bool(pod.spec.node_name) or seated)
        else:
            self._lanes.lifted(member.key, unit.scheduler)
