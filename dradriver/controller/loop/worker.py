"""The parts of the controller's loop, put together: what is looked at, queued, planned and written, and by whom."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

from dradriver.api.claims.pins import Key
from dradriver.api.policies.model import Policies
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.gpus.tabulating import AtOnce
from dradriver.cluster.pods.volumes import VolumeReader
from dradriver.controller import metrics
from dradriver.controller.loop.background import always
from dradriver.controller.loop.dispatcher import Dispatcher
from dradriver.controller.loop.gang_observer import GangObserver
from dradriver.controller.loop.hand_over import HandOver
from dradriver.controller.loop.placer import Placer
from dradriver.controller.loop.planner import Planner
from dradriver.controller.loop.preemption import Preemptions
from dradriver.controller.loop.recorders import Recorders
from dradriver.controller.loop.reservations import Reservations
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.loop.step_runner import StepRunner
from dradriver.controller.loop.turn import Turn
from dradriver.controller.owners.evictions import Evictions
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.owner_reader import OwnerReader
from dradriver.controller.owners.owner_restarts import OwnerRestarts
from dradriver.controller.reading.prerequisites import Prerequisites
from dradriver.controller.reading.template_reader import TemplateReader
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.gang_sizes import size_matters
from dradriver.controller.writing.api_writer import ApiWriter
from dradriver.controller.writing.commit import Commit
from dradriver.controller.writing.executor import OBJECT_BACKOFF_S, Executor
from dradriver.controller.writing.garbage_collector import Collector
from dradriver.controller.writing.placed import Placed
from dradriver.controller.writing.reasons import Reasons
from dradriver.kube.client import Client
from dradriver.queue.agenda import Agenda
from dradriver.queue.caps import Caps
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.tenant_shares import Shares
from dradriver.queue.waiting import Queue
from dradriver.queue.workload_register import WorkloadRegister
from dradriver.queue.write_lanes import Lanes

logger = logging.getLogger(__name__)

RECHECK_S: Final = 0.5


class Worker:
    """Puts the parts of the loop together and runs them; ``turn.py`` tells what the loop does.

    If something goes wrong with one workload (its annotations, a refusal, a webhook, a bug), that workload waits and is
    told why. Only trouble with the server stops all.

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
        self.tenants = Tenants(Shares(time.monotonic))
        self._workloads = WorkloadRegister(self.tenants)
        self.picture = Picture(
            self._agenda.add, self._agenda.wake, clock=clock, tables=tables, partition_of=self.tenants.partition_of
        )
        self.caps = Caps(self.tenants, self.picture, self._agenda.wake)
        self._queue = Queue(
            self.picture.nodes, self.picture.inventory.free, tenant=self.tenants.of, share=self.tenants.turn,
            partition=self.tenants.partition, closed=self.caps.closed, open_rows=self.caps.open_rows,
        )  # fmt: skip
        self._lanes = Lanes(self._agenda.wake, self._queue.turn)
        writer = ApiWriter(client, self.picture, self._lanes)
        self.reasons = Reasons(writer.pods, pods=self.picture.pods.get, lanes=self._lanes, record=recorders.waiting)
        self.placed = Placed(self.picture, self._lanes, recorders.placed)
        commit = Commit(client, writer, self.picture, self._lanes, self.placed, self.reasons)
        self._executor = Executor(
            commit, writer, self._lanes, self.picture, self.reasons, self._agenda, self._workloads
        )
        self.reservations = Reservations(
            self.picture, self._agenda, self._queue, self.tenants, self._workloads, self.caps.limits, clock=clock
        )
        kinds = OwnerKinds(client)
        self._owner_reader = OwnerReader(
            client, kinds, waits=partial(size_matters, self.picture), touch=self._agenda.add
        )
        self._restarts = OwnerRestarts(client, kinds, pods=self.picture.pods, touch=self._agenda.add)
        self._preemptions = Preemptions(
            self.picture, self._queue, self._lanes, self.tenants, self._executor,
            Evictions(client, self.picture, self._restarts, suspendable=suspendable, record=recorders.preempted),
            limits=self.caps.limits, whose=self.reservations.whose,
        )  # fmt: skip
        running = RunningGangs(self.picture, self._agenda, self._owner_reader, self._restarts, deadlines)
        hand_over = HandOver(self.tenants, self.caps, self._lanes, deadlines)
        planner = Planner(self.picture, self._queue, self.caps, self.reservations)
        placer = Placer(self._agenda, self._queue, self.reasons, self._executor, planner, running, hand_over)
        runner = StepRunner(self.picture, self._agenda, self._executor, placer, self._preemptions, hand_over, deadlines)
        self._gangs = GangObserver(self.picture, self._agenda, self._owner_reader)
        self._template_reader = TemplateReader(client, self.picture)
        self._volumes = VolumeReader(client, self.picture.volumes, self.picture.volume_read)
        dispatcher = Dispatcher(
            self.picture, self._agenda, self._workloads, self._queue, self._lanes, self.reasons, self._executor,
            runner, self._gangs, running,
            Prerequisites(
                self.picture, self._template_reader, self._volumes,
                leaves=lambda gang: running.leaves(gang) or self._preemptions.leaves(gang),
            ),
        )  # fmt: skip
        self._collector = Collector(client, self.picture, writer, self._lanes, grace_s=deadlines.grace_s)
        self._turn = Turn(
            self._agenda, self._queue, self._lanes, self.picture.fleets, dispatcher, placer, self._executor
        )
        dispatcher.looked.add(self.reservations.looked_at)
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
        self._agenda.begin((*self.picture.gangs, *self._workloads, *self.picture.pods))

    def follow(self, policies: Policies) -> None:
        """Put workloads in order, and reserve GPUs, by these policies from now on."""
        self.picture.fleets.follow(policies)
        self.reservations.follow(policies)
        self._preemptions.follow(policies)
        if self.tenants.follow(policies):
            self._regroup(self._workloads)

    def namespace_changed(self, namespace: str, labels: Mapping[str, str] | None) -> None:
        """Take in a namespace's labels; None where it is gone."""
        if self.tenants.namespace_changed(namespace, labels):
            self._regroup([key for key in self._workloads if key[0] == namespace])

    def _regroup(self, workloads: Iterable[Key]) -> None:
        self.caps.regroup()
        for key in workloads:
            self._queue.drop(key)
            self._workloads[key].trust(self.tenants.highest(key[0]))
            self._agenda.add(key)

    async def turn(self) -> None:
        """Look at all that changed and give places while there are places and writers."""
        await self._turn.take()
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
            self._gangs.look_now(self._workloads)
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
        if self.picture.kept_places.of_gang:
            self.picture.kept_places.expire(asyncio.get_running_loop().time())
        await self._collector.sweep()
        await self._restarts.find()
        await self._restarts.settle()

    async def _recheck(self) -> None:
        """Ask blocked kinds again, a few at a time: their reasons get old, and an event might have been missed."""
        while True:
            await asyncio.sleep(RECHECK_S)
            now = asyncio.get_running_loop().time()
            if self.picture.kept_places.of_gang:
                self.picture.kept_places.expire(now)
            if self._queue.rechecks.look_anew(self.picture.version, now):
                self._agenda.wake()
            self._preemptions.look()
