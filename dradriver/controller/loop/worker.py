"""Puts the parts of the controller's loop together: agenda, queue, planner and writers. ``Controller`` runs it.

A *workload* is a single pod or a gang. A *place* is a node and GPUs for one pod. The *agenda* lists the pods and gangs
that the controller processes next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

from dradriver.api.claims.pins import Key
from dradriver.api.policies.policy_sections import Policies
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
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.loop.step_runner import StepRunner
from dradriver.controller.loop.turn import Turn
from dradriver.controller.loop.workload_keeper import WorkloadKeeper
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
from dradriver.controller.writing.reasons import PodRecorders, Reasons
from dradriver.event import Event
from dradriver.kube.client import Client
from dradriver.queue.agenda import Agenda
from dradriver.queue.eviction_record import EvictionRecord
from dradriver.queue.limits import Limits
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.tenant_shares import Shares
from dradriver.queue.waiting import Queue
from dradriver.queue.workload_register import WorkloadRegister
from dradriver.queue.write_lanes import Lanes

logger = logging.getLogger(__name__)

RECHECK_S: Final = 0.5


class Worker:
    """Connects the parts of the loop and runs them; ``turn.py`` shows what they do.

    If something goes wrong with one workload (its annotations, a refusal, a webhook, a bug), that workload waits, and
    its pods are told why. Only trouble with the API server stops all workloads.

    Attributes:
        picture: The cluster cache, which reflectors fill.
        tenants: The tenants, and how much GPU time each has used.
        limits: The limits on the GPUs that a workload may use. Features register them here.
        agenda: The pods and gangs that have to be processed.
        queue: The workloads that want places, in order.
        workloads: All workloads, by the key of their pod or gang.
        followed: An event. It is sent with the policies that come into force.
        reasons: Why pods wait.
        placed: Writes Events and metrics about placed pods.
        evicted: The workloads that were evicted for other workloads. The feature ``Reservations`` stores them.
    """

    def __init__(
        self,
        client: Client,
        *,
        deadlines: Deadlines | None = None,
        recorders: PodRecorders | None = None,
        suspendable: Collection[str] = (),
        clock: Callable[[], float] | None = None,
        tables: AtOnce | None = None,
        tells_nvsentinel: bool = False,
    ) -> None:
        """Make a worker with an empty cluster cache.

        Args:
            client: The API server.
            deadlines: How long to wait for the scheduler, for pods and for claims.
            recorders: Write Events about pods; None for no Events.
            suspendable: Kinds of owners, such as Job, that the controller may suspend to end their pods.
            clock: Returns seconds since the epoch, for GPU time; the system's by default.
            tables: Computes the sets of GPUs that pods can get on each type of machine; None to compute them where they
                are needed.
            tells_nvsentinel: Whether pods that get GPUs also get NVSentinel's annotation.
        """
        deadlines, recorders = deadlines or Deadlines(), recorders or PodRecorders()
        # 1. What is known, and who waits. A part gets the parts that it calls. If a part has to call another one that
        #    does not exist yet or that it must not know, it gets a callback such as ``touch`` or ``on_room``.
        self.agenda = Agenda()
        self.tenants = Tenants(Shares(time.monotonic))
        self.workloads = WorkloadRegister(self.tenants)
        self.picture = Picture(
            self.agenda.add, self.agenda.wake, clock=clock, tables=tables, partition_of=self.tenants.partition_of
        )
        self.limits = Limits(self.picture)
        self.followed: Event[Policies] = Event()
        self.queue = Queue(
            self.picture.nodes, self.picture.inventory.free, tenant=self.tenants.of, share=self.tenants.turn,
            partition=self.tenants.partition, closed=self.limits.closed, open_rows=self.limits.open_rows,
        )  # fmt: skip
        # 2. Writes: which may begin now (lanes), single ones (writer), those of a workload (commit), and who runs these
        #    (executor).
        self._lanes = Lanes(self.agenda.wake, self.queue.turn, self.tenants.of)
        writer = ApiWriter(client, self.picture, self._lanes, tells_nvsentinel=tells_nvsentinel)
        self.reasons = Reasons(writer.pods, pods=self.picture.pods.get, lanes=self._lanes, record=recorders.waiting)
        self.placed = Placed(self.picture, self._lanes, recorders.placed)
        commit = Commit(client, writer, self.picture, self._lanes, self.placed, self.reasons)
        self._executor = Executor(commit, writer, self._lanes, self.picture, self.reasons, self.agenda, self.workloads)
        # 3. Owners of pods: read for the sizes of gangs, suspended and resumed to restart gangs or to preempt.
        kinds = OwnerKinds(client)  # the API versions in which the server has each kind
        self._owner_reader = OwnerReader(
            client, kinds, waits=partial(size_matters, self.picture), touch=self.agenda.add
        )
        self._restarts = OwnerRestarts(client, kinds, pods=self.picture.pods, touch=self.agenda.add)
        self.evicted = EvictionRecord()
        self._preemptions = Preemptions(
            self.picture, self.queue, self._lanes, self.tenants, self._executor,
            Evictions(
                client, self.picture, self._restarts, self.evicted,
                suspendable=suspendable, record=recorders.preempted,
            ),
            self.limits, self.evicted,
        )  # fmt: skip
        # 4. What is decided: running gangs, placements, and what a look at a pod or gang leads to (runner).
        running = RunningGangs(self.picture, self.agenda, self._owner_reader, self._restarts, deadlines)
        hand_over = HandOver(self.tenants, self.limits, self._lanes, deadlines)
        planner = Planner(self.picture, self.queue, self.limits)
        placer = Placer(self.agenda, self.queue, self.reasons, self._executor, planner, running, hand_over)
        runner = StepRunner(self.picture, self.agenda, self._executor, placer, self._preemptions, hand_over, deadlines)
        # 5. Looks: what is read for them, and the dispatcher, which has each pod or gang looked at.
        self._gangs = GangObserver(self.picture, self.agenda, self._owner_reader)
        self._template_reader = TemplateReader(client, self.picture)
        self._volumes = VolumeReader(client, self.picture.volumes, self.picture.volume_read)
        keeper = WorkloadKeeper(
            self.picture, self.agenda, self.workloads, self.queue, self._lanes, self.reasons, self._executor
        )
        keeper.disbanded.add(self._gangs.forget, running.forget)
        dispatcher = Dispatcher(
            self.picture, self.agenda, keeper, runner, self._gangs, running,
            Prerequisites(
                self.picture, self._template_reader, self._volumes,
                # Whether a gang is about to be restarted or preempted, so that none of its pods needs a place.
                leaves=lambda gang: running.leaves(gang) or self._preemptions.leaves(gang),
            ),
        )  # fmt: skip
        # 6. The loop, and what runs next to it.
        self._collector = Collector(client, self.picture, writer, self._lanes, grace_s=deadlines.grace_s)
        self._turn = Turn(self.agenda, self.queue, self._lanes, self.picture.fleets, dispatcher, placer, self._executor)
        dispatcher.looked.add(self.limits.looked_at)
        self._subscribe()

    def _subscribe(self) -> None:
        """Connect those parts of the loop that react to changes of other parts."""
        self.picture.gpu_time.changed.add(self.tenants.shares.holds)
        self.picture.gpu_time.charged.add(self.limits.charge)
        self.tenants.shares.lowered.add(self.queue.lowered)

    async def run(self) -> None:
        """Process pods and gangs, and do the periodic work, until cancelled."""
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
                    self.agenda.clear_wake()
                    try:
                        await self.turn()
                    except Exception:  # a bug that is nobody's in particular: what can be done without it goes on
                        logger.exception("Internal error. The controller goes on.")
                        await asyncio.sleep(OBJECT_BACKOFF_S)
                    await self.agenda.sleep()
        finally:
            await self._executor.stop()
            self.agenda.end()

    def begin(self) -> None:
        """Open the agenda, with all pods and gangs on it.

        From now on, other parts of the loop add the pods and gangs that change.
        """
        self._preemptions.begin()
        self.agenda.begin((*self.picture.gangs, *self.workloads, *self.picture.pods))

    def follow(self, policies: Policies) -> None:
        """Use these policies from now on."""
        self.picture.fleets.follow(policies)
        self._preemptions.follow(policies)
        has_changed = self.tenants.follow(policies)
        self.followed(policies)
        if has_changed:
            self._regroup(self.workloads)

    def namespace_changed(self, namespace: str, labels: Mapping[str, str] | None) -> None:
        """Find the tenant of a namespace again by its new labels.

        ``labels`` is None if the namespace is gone. If the tenant changes, its workloads are queued again.
        """
        if self.tenants.namespace_changed(namespace, labels):
            self._regroup([key for key in self.workloads if key[0] == namespace])

    def _regroup(self, workloads: Iterable[Key]) -> None:
        self.limits.regroup()
        for key in workloads:
            self.queue.drop(key)
            self.workloads[key].trust(self.tenants.highest(key[0]))
            self.agenda.add(key)

    async def turn(self) -> None:
        """Take one turn (``Turn.take``), and set the metrics of waiting workloads and gangs."""
        await self._turn.take()
        metrics.WAITING.set(len(self.queue))
        metrics.ASIDE.set(len(self.picture.inventory.aside))
        for state, count in zip(("waiting", "started"), self.picture.gangs.counts(), strict=True):
            metrics.GANGS.labels(state).set(count)

    async def rest(self) -> None:
        """Work until nothing is left to do now, including the writes of reasons.

        Only tests and programs that drive the worker step by step call it.
        """
        while True:
            await self.turn()
            if self._executor:
                await self._executor.one_done()
                continue
            await self._volumes.read()
            self._gangs.look_now(self.workloads)
            if (
                await self._template_reader.read()
                or await self._owner_reader.read()
                or self.queue.rechecks.look_anew(self.picture.version, float("inf"))
                or self._preemptions.look()
                or self.agenda
            ):
                continue
            if not await self.reasons.flush():
                return

    @property
    def acts(self) -> bool:
        """Whether the worker processes pods. Only the leader's worker does."""
        return self.agenda.is_open

    @property
    def restarts(self) -> OwnerRestarts:
        """The object that restarts gangs by suspending and resuming their owners."""
        return self._restarts

    @property
    def busy(self) -> bool:
        """Whether writes are running, or pods wait to be processed."""
        return bool(self._executor or self.agenda)

    @property
    def rechecks_due(self) -> bool:
        """Whether workloads without a place must be tried again, because something became free."""
        return self.queue.rechecks.outdated

    async def sweep(self) -> None:
        """Do the periodic work of the worker once.

        It deletes orphaned claims, and asks the API server about writes that no reflector has shown. It also resumes
        the owners that the controller suspended, and frees the places of lost pods that were kept for too long.
        """
        if self.picture.kept_places.of_gang:
            self.picture.kept_places.expire(asyncio.get_running_loop().time())
        await self._collector.sweep()
        await self._restarts.find()
        await self._restarts.settle()

    async def _recheck(self) -> None:
        """Try workloads without a place again at intervals; then try preemption for them.

        This is needed for two reasons. The reasons that their pods show become outdated. And an event that makes room
        may have been missed.
        """
        while True:
            await asyncio.sleep(RECHECK_S)
            now = asyncio.get_running_loop().time()
            if self.picture.kept_places.of_gang:
                self.picture.kept_places.expire(now)
            if self.queue.rechecks.look_anew(self.picture.version, now):
                self.agenda.wake()
            self._preemptions.look()
