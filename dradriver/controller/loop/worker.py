"""Queue, decide, commit: looks at pods that changed, gives places to those that wait, and keeps writers busy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key
from dradriver.api.policies.model import Policies
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.gpus.tabulating import AtOnce
from dradriver.cluster.pods.volumes import VolumeReader
from dradriver.controller import metrics
from dradriver.controller.loop.background import always
from dradriver.controller.loop.dispatcher import Dispatcher
from dradriver.controller.loop.gang_worker import GangWorker
from dradriver.controller.loop.pod_worker import PodWorker
from dradriver.controller.loop.preemption import Preemptions
from dradriver.controller.loop.recorders import Recorders
from dradriver.controller.loop.reservations import Reservations
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.owners.evictions import Evictions
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.owner_reader import OwnerReader
from dradriver.controller.owners.owner_restarts import OwnerRestarts
from dradriver.controller.reading.prerequisites import Prerequisites
from dradriver.controller.reading.template_reader import TemplateReader
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.gang_sizes import size_matters
from dradriver.controller.writing.api_writer import ApiWriter
from dradriver.controller.writing.executor import OBJECT_BACKOFF_S, OWN_ERROR, Executor
from dradriver.controller.writing.gang_writer import GangWriter
from dradriver.controller.writing.garbage_collector import Collector
from dradriver.controller.writing.placed import Placed
from dradriver.controller.writing.reasons import Reasons
from dradriver.kube.client import Client
from dradriver.queue.agenda import Agenda
from dradriver.queue.caps import CapError, Caps
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.rechecks import Asking
from dradriver.queue.tenant_shares import Shares
from dradriver.queue.unit_register import UnitRegister
from dradriver.queue.units import Unit
from dradriver.queue.waiting import Queue
from dradriver.queue.write_lanes import Lanes

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.01  # of work before others get the loop
RECHECK_S: Final = 0.5


class Worker:
    """Decides by itself, one unit at a time and the oldest first; writes for many at once.

    Whatever goes wrong with one unit (its words, a refusal, a webhook, a bug) costs that unit a pause and a reason,
    and nobody else anything. Only trouble with the server stops all.

    Attributes:
        picture: The cluster, for reflectors to fill.
        tenants: Who has had how much.
        caps: What of it they may have at a time.
        reservations: Which GPUs are kept for whom.
        reasons: Why pods wait.
        placed: What became of those that waited.
    """

    def __init__(
        self,
        client: Client,
        *,
        deadlines: Deadlines | None = None,
        recorders: Recorders | None = None,
        suspendable: Collection[str] = (),
        clock: Callable[[], float] | None = None,
        tables: AtOnce | None = None,
    ) -> None:
        """Make a worker with an empty picture of the cluster.

        Args:
            client: The API server.
            deadlines: How long to wait for the scheduler, for pods and for claims.
            recorders: Write Events about pods; None for no Events.
            suspendable: Kinds of owners that the controller may suspend.
            clock: Returns seconds since the epoch, for GPU time and reservations; the system's by default.
            tables: Makes the tables of machines; None to make them where they are needed.
        """
        deadlines, recorders = deadlines or Deadlines(), recorders or Recorders()
        self._agenda = Agenda()
        self._units = UnitRegister()
        self.tenants = Tenants(Shares(time.monotonic))
        self.picture = Picture(
            self._agenda.add, self._agenda.wake, clock=clock, tables=tables, partition_of=self.tenants.partition_of
        )
        self.caps = Caps(self.tenants, self.picture, self._agenda.wake)
        self._queue = Queue(
            self.picture.nodes, self.picture.inventory.free, tenant=self.tenants.of, share=self.tenants.turn,
            partition=self.tenants.partition, closed=self.caps.closed, open_rows=self.caps.open_rows,
        )  # fmt: skip
        self._asking = Asking(self._queue.rechecks, self._agenda.wake)
        self._lanes = Lanes(self._agenda.wake, self._queue.turn)
        writer = ApiWriter(client, self.picture, self._lanes)
        self.reasons = Reasons(writer.pods, pods=self.picture.pods.get, lanes=self._lanes, record=recorders.waiting)
        self.placed = Placed(self.picture, self._lanes, recorders.placed)
        gang_writer = GangWriter(client, writer, self.picture, self._lanes, self.placed, self.reasons)
        self._executor = Executor(
            writer, self._lanes, self.picture, self.reasons, self.placed, self._agenda, self._units
        )
        self.reservations = Reservations(
            self.picture, self._agenda, self._queue, self.tenants, self._units, self.caps.limits, clock=clock
        )
        kinds = OwnerKinds(client)
        self._owner_reader = OwnerReader(
            client, kinds, waits=partial(size_matters, self.picture), touch=self._agenda.add
        )
        self._restarts = OwnerRestarts(client, kinds, pods=self.picture.pods, touch=self._agenda.add)
        self._preemptions = Preemptions(
            self.picture, self._queue, self._lanes, self.tenants, self._executor, gang_writer,
            Evictions(client, self.picture, self._restarts, suspendable=suspendable, record=recorders.preempted),
            limits=self.caps.limits, whose=self.reservations.whose,
        )  # fmt: skip
        self._running = RunningGangs(
            self.picture, self._agenda, self._owner_reader, self._restarts, promise_s=deadlines.promise_s
        )
        self._gangs = GangWorker(
            self.picture, self._agenda, self._queue, self._lanes, self.reasons, self._executor, gang_writer,
            self._owner_reader, self._running, self.caps, self.reservations, self._preemptions, deadlines,
        )  # fmt: skip
        self._pods = PodWorker(
            self.picture, self._agenda, self._queue, self._lanes, self.reasons, self._executor, gang_writer,
            self._running, self.caps, self.reservations, self._preemptions, self.tenants, deadlines,
        )  # fmt: skip
        self._template_reader = TemplateReader(client, self.picture)
        self._volumes = VolumeReader(client, self.picture.volumes, self.picture.volume_read)
        self._dispatcher = Dispatcher(
            self.picture, self._agenda, self._units, self.tenants, self._queue, self._lanes, self.reasons,
            self._executor, self._pods, self._gangs, self._running, self._preemptions,
            Prerequisites(self.picture, self._template_reader, self._volumes),
        )  # fmt: skip
        self._collector = Collector(client, self.picture, writer, self._lanes, grace_s=deadlines.grace_s)
        self._subscribe()

    def _subscribe(self) -> None:
        """Connect the parts that have to follow changes of others."""
        self.picture.gpu_time.changed.add(self.tenants.shares.holds)
        self.picture.gpu_time.charged.add(self.caps.charge)
        self.picture.inventory.reserved.changed.add(self.reservations.gpus_changed)
        self.tenants.shares.lowered.add(self._queue.lowered)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for work in (
                    self.reasons.run,
                    self.placed.run,
                    self._template_reader.run,
                    self._owner_reader.run,
                    self._restarts.run,
                    self._volumes.run,
                    self._collector.run,
                    self._recheck,
                ):
                    group.create_task(always(work))
                self.begin()
                while True:
                    self._agenda.clear_wake()
                    try:
                        await self.turn()
                    except Exception:  # a bug that is nobody's in particular: what can be done without it goes on
                        logger.exception("an error in this program; going on")
                        await asyncio.sleep(OBJECT_BACKOFF_S)
                    await self._agenda.sleep()
        finally:
            await self._executor.stop()
            self._agenda.end()

    def begin(self) -> None:
        """Look at all pods, and at gangs that may have lost some; from now on at those that changes concern."""
        self._preemptions.begin()
        self._agenda.begin((*self.picture.gangs, *self._units, *self.picture.pods))

    def follow(self, policies: Policies) -> None:
        """Put units in order, and reserve GPUs, by these policies from now on."""
        self.picture.fleets.follow(policies)
        self.reservations.follow(policies)
        self._preemptions.follow(policies)
        if self.tenants.follow(policies):
            self._regroup(self._units)

    def namespace_changed(self, namespace: str, labels: Mapping[str, str] | None) -> None:
        """Take in a namespace's labels; None where it is gone."""
        if self.tenants.namespace_changed(namespace, labels):
            self._regroup([key for key in self._units if key[0] == namespace])

    def _regroup(self, units: Iterable[Key]) -> None:
        self.caps.regroup()
        for key in units:
            self._queue.drop(key)
            self._units[key].trust(self.tenants.highest(key[0]))
            self._agenda.add(key)

    async def turn(self) -> None:
        """Look at all that changed and give places while there are places and writers."""
        loop = asyncio.get_running_loop()
        begun = loop.time()

        def late() -> bool:
            return loop.time() - begun > SLICE_S

        while True:
            if late():
                await asyncio.sleep(0)
                begun = loop.time()
            self._agenda.ring(loop.time())
            if not self._agenda and (key := self._lanes.next(self._queue.head)) is not None:
                self._agenda.add(key)
            if (key := self._agenda.pop()) is not None:
                self._guarded(key)
            elif self.picture.fleets.catch_up(late):
                continue  # others get the loop between the tables of a thousand kinds of nodes
            elif not (self._asking.some() or self._next() or self._asking.again()):
                break
        metrics.WAITING.set(len(self._queue))
        metrics.ASIDE.set(len(self.picture.inventory.aside))
        for state, count in zip(("waiting", "started"), self.picture.gangs.counts(), strict=True):
            metrics.GANGS.labels(state).set(count)

    async def rest(self) -> None:
        """Work until nothing is left to do now, reasons included; for tests, and for those who drive it by hand."""
        while True:
            await self.turn()
            if self._executor:
                await self._executor.one_done()
                continue
            await self._volumes.read()
            self._gangs.look_now(self._units)
            if (
                await self._template_reader.read()
                or await self._owner_reader.read()
                or self._queue.rechecks.look_anew(self.picture.version, float("inf"))
                or self._preemptions.look()
                or self._agenda
            ):
                continue
            if not await self.reasons.flush():
                return

    @property
    def acts(self) -> bool:
        """Whether it looks at pods, as one replica alone does."""
        return self._agenda.is_open

    @property
    def restarts(self) -> OwnerRestarts:
        """The gangs that the controller starts again by suspending and resuming their owners."""
        return self._restarts

    @property
    def busy(self) -> bool:
        """Whether writers are at work, or pods have to be looked at."""
        return bool(self._executor or self._agenda)

    @property
    def rechecks_due(self) -> bool:
        """Whether something became free, and not all pods that found no place before have been asked again yet."""
        return self._queue.rechecks.outdated

    async def sweep(self) -> None:
        """Delete what has been an orphan for long, end assumptions that the server does not share, resume owners."""
        self.picture.kept_places.expire(asyncio.get_running_loop().time())
        await self._collector.sweep()
        await self._restarts.find()
        await self._restarts.settle()

    # Looking at one unit.

    def _guarded(self, key: Key) -> None:
        try:
            self._dispatcher.look(key)
            self.reservations.looked_at(key)
        except Exception:  # a bug in what one pod meets must not stop the others
            logger.exception("pod %s/%s: an error in this program; trying again later", *key)
            if (unit := self._units.get(key)) is not None:
                self._queue.drop(key)
                self._executor.fail(unit, OWN_ERROR)

    # Giving places.

    def _next(self) -> bool:
        """Give the next unit its place. Returns whether there may be another one to serve."""
        if not self._lanes.room():
            return False
        while self.caps.fallen:
            for unit, reason in self._queue.widen(self.caps.fallen.pop()):
                self._worker_of(unit).without_place(unit, reason)
        due = self._queue.next()
        if due is None:
            return False
        unit, rows = due
        if (obstacle := self._lanes.obstacle(unit.key, unit.order, scheduler=unit.scheduler)) is not None:
            self._queue.leave(unit)
            self.reasons.want(unit.lead.pod, obstacle.why)
            return True
        worker = self._worker_of(unit)
        try:
            worker.place(unit, rows)
        except NoPlaceError as error:
            why = worker.why(unit, error, rows)
            for other in self._queue.block(unit, why, error.about if isinstance(error, CapError) else ""):
                if why is not None:
                    worker.without_place(other, why)
        except WordError as error:
            self._queue.leave(unit)
            for member in unit.members:
                self.reasons.want(member.pod, error.why)
        except Exception:
            logger.exception("pod %s/%s: an error in this program; trying again later", *unit.key)
            self._queue.leave(unit)
            self._executor.fail(unit, OWN_ERROR)
        return True

    def _worker_of(self, unit: Unit) -> GangWorker | PodWorker:
        return self._gangs if unit.key in self.picture.gangs else self._pods

    # Now and then.

    async def _recheck(self) -> None:
        """Ask blocked kinds again, a few at a time: their reasons get old, and an event might have been missed."""
        while True:
            await asyncio.sleep(RECHECK_S)
            now = asyncio.get_running_loop().time()
            self.picture.kept_places.expire(now)
            if self._queue.rechecks.look_anew(self.picture.version, now):
                self._agenda.wake()
            self._preemptions.look()
