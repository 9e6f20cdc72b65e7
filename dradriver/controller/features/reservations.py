"""Reserves GPUs for workloads that have waited too long while other workloads were placed.

The rules are in ``queue/reservation_rules.py``. The leader makes, moves and ends reservations, stores them for the next
leader, and counts how long reserved GPUs stay idle.

A *workload* is a single pod or a gang. It is *blocked* if it found no place (a node and GPUs for each pod). The
*agenda* lists the pods and gangs that the controller processes next. An *allowance* says which pods of a workload may
have a place under the limits, such as a tenant's cap, and on which GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.claims import reservation_config_map as stored
from dradriver.api.claims.pins import Device, Key
from dradriver.api.policies.policy_sections import Policies
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller import metrics
from dradriver.controller.features.reserved_workloads import claims_of, idle_gpus_of, is_placed, nodes_of, waits
from dradriver.controller.placing.reservable import SLICE_S, Reservable
from dradriver.controller.writing.reservation_store import ReservationStore
from dradriver.errors import DriverError
from dradriver.kube.backoff import wait_s
from dradriver.queue import reservation_access, reservation_rules, reservation_waits
from dradriver.queue.agenda import Agenda
from dradriver.queue.eviction_record import EvictionRecord
from dradriver.queue.limits import Allowance, Limit, LimitError, Limits
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.reservation_access import key_of
from dradriver.queue.reservation_rules import Blocked, Reservation, Step, Terms
from dradriver.queue.reservation_waits import ReservationWaits
from dradriver.queue.waiting import Queue
from dradriver.reason import Cause, Reason

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0  # between two looks at who is blocked, and at whether those with a reservation wait still
SHORTEST_PAUSE_S: Final = 0.01
WRITE_S: Final = 60.0  # between two writes of what has only grown
SOON_S: Final = 5.0  # after which it is written that more stands idle
HOPELESS_S: Final = 300.0  # after which a set is looked for again for one for whom there was none
TRIES: Final = 4  # for whom a set is looked for, in one look
FIRST_LOAD_S: Final = 5.0  # that a new leader waits to know what is reserved
_RETRY_S: Final = 1.0


class Reservations(Limit):
    """All reservations of the cluster. ``who`` is always the name of a workload (``PendingWorkload.who``).

    Attributes:
        terms: The rules from the policies file; None if no GPUs may be reserved.
    """

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        queue: Queue,
        tenants: Tenants,
        workloads: Mapping[Key, PendingWorkload],
        limits: Limits,
        evicted: EvictionRecord,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Begin without reservations.

        Args:
            picture: The cluster cache. The caller must arrange that it calls ``gpus_changed`` for each change of a
                reserved GPU.
            agenda: Takes the workloads whose reservation begins or ends, because they must be processed.
            queue: Gives the blocked workloads in their order.
            tenants: Give the tenant of a namespace.
            workloads: All workloads that the worker keeps, by key.
            limits: Says which GPUs a workload may have. It asks this object while there are reservations.
            evicted: The workloads that were evicted for other workloads. Their records are stored together with the
                reservations.
            clock: Gives seconds since the epoch; by default the system's.
        """
        self.terms: Terms | None = Terms()
        self._picture, self._agenda, self._queue, self._tenants = picture, agenda, queue, tenants
        self._workloads, self._limits, self._clock = workloads, limits, clock or time.time
        self._reservable = Reservable(picture, self._clock)
        # Workloads are named as ``PendingWorkload.who``, which every leader knows. Times are seconds since the epoch.
        self._held: dict[str, Reservation] = {}  # by workload: its reservation
        self._by_key: dict[Key, str] = {}  # by pod or gang: the workload of a reservation
        self._idle: dict[str, int] = {}  # by workload: how many of its reserved GPUs are idle now
        # Since when workloads are blocked, and how many reservations of their tenants came to nothing.
        self._waiting, self._evicted = ReservationWaits(), evicted
        self._hopeless: dict[str, float] = {}  # by workload without a set to reserve: when to look for one again
        self._loaded = asyncio.Event()  # set once the former leader's reservations are read, while this replica leads
        self._woken = asyncio.Event()  # set to have ``run`` take its next step now
        self._stepped = asyncio.Event()  # set after each step of ``run``: there may be something to write
        self._news = False  # whether there is something to write soon
        self._more_idle = False  # whether more GPUs are idle than was written, which can be written a little later
        self._looked_at = self._written_at = 0.0  # when blocked workloads were looked at last, and the store written
        self._last: object = ([], [], [], [])  # what the API server has

    # What others ask.

    def follow(self, policies: Policies) -> None:
        """Apply the reservation rules of these policies from now on."""
        section = policies.queue.reservation
        self.terms = Terms.of(section) if section.after_minutes else None
        self._woken.set()

    def all(self) -> tuple[Reservation, ...]:
        """Return the reservations in force."""
        return tuple(self._held.values())

    def reserved(self, workload: PendingWorkload) -> str:
        """Return the name of a workload's reservation; empty if no GPUs are reserved for it."""
        return workload.who if workload.who in self._held else ""

    def whose(self, workload: PendingWorkload, later_s: float) -> tuple[str, ...]:
        """Return the names of the reservations whose GPUs a workload may use.

        Args:
            workload: The workload, which need not have a reservation.
            later_s: In how many seconds it would begin. A workload that ends early enough may use GPUs that are
                reserved for others.

        Raises:
            WordError: The request of the workload cannot be read.
        """
        if self.terms is None:
            return ()
        return reservation_access.open_to(workload, self._held.values(), self.terms, self._clock(), later_s)

    def looked_at(self, key: Key) -> None:
        """Start the check of all reservations if one of them is not needed any more.

        ``key`` is a pod or gang that the controller has just processed. Its reservation is not needed if it no longer
        waits. If it still waits, or has no reservation, nothing is done.
        """
        who = self._by_key.get(key)
        if who is not None and not waits(self._picture, who):
            self._woken.set()

    def told(self, workload: PendingWorkload, reason: Reason) -> Reason:
        """Return why a workload waits: ``reason``, and the GPUs that are reserved for it.

        If no GPUs are reserved for it, the result is ``reason`` alone.
        """
        own = self._held.get(workload.reserved)
        if own is None:
            return reason
        return reason.add(reservation_rules.reason(own), None if reason.cause is Cause.CAP else Cause.ENDING)

    # At work.

    @property
    def loaded(self) -> bool:
        """Whether this leader has read the reservations of the previous leader."""
        return self._loaded.is_set()

    async def first_load(self) -> None:
        """Wait until the stored reservations are read, at most ``FIRST_LOAD_S`` seconds."""
        try:
            async with asyncio.timeout(FIRST_LOAD_S):
                await self._loaded.wait()
        except TimeoutError:
            logger.warning("The saved reservations cannot be read yet. The controller starts without them.")

    async def run(self, store: ReservationStore | None) -> NoReturn:
        """Make, move and end reservations until cancelled.

        ``store`` keeps them for the next leader; None for no store.
        """
        try:
            await self._load(store)
            self._loaded.set()
            async with asyncio.TaskGroup() as group:
                # A write that is not answered must keep no reservation from ending in time.
                if store is not None:
                    group.create_task(self._save_in_time(store))
                while True:
                    self._woken.clear()
                    try:
                        await self.step()
                    except Exception:  # a bug that is nobody's in particular: what is reserved stays so
                        logger.exception("Internal error. The controller goes on.")
                    self._stepped.set()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._pause_s()):
                            await self._woken.wait()
        finally:
            self._loaded.clear()
            self._held.clear()
            self._waiting.clear()
            self._apply()

    async def step(self) -> None:
        """Keep, move or end each reservation, and make new ones that are due."""
        now = self._clock()
        self._count(now)
        for who in list(self._held):
            await self._judge(who)
        if self.terms is None:
            self._waiting.clear()
        elif now >= self._looked_at + LOOK_S or now < self._looked_at:
            self._looked_at = now
            await self._look(self.terms)

    async def _judge(self, who: str) -> None:
        """Keep the reservation of the workload ``who``, move it to other GPUs, or end it."""
        workload, terms = self._workloads.get(key_of(who)), self.terms or Terms()  # None: not looked at yet, or gone
        before = self._held[who]
        # 1. When will its GPUs be free? ``current`` has these GPUs with the pods that use them, without the claims of
        #    the workload itself. ``seen`` returns ``before`` itself if nothing has changed. Else other pods can run
        #    there now: ``helped`` has those that found no place asked again about the node.
        current = self._reservable.current(before.gpus, besides=() if workload is None else claims_of(workload))
        held = self._held[who] = reservation_rules.seen(before, current)
        if held is not before:
            for node in dict.fromkeys(node for node, _ in held.gpus):
                self._picture.nodes.helped(node)
            self._apply(who, news=False)
        # 2. Does the workload still wait for GPUs that it could have? Are these still there, or others sooner?
        is_needed = self.terms is not None and waits(self._picture, who)
        lost, alternative = list[Device](), None  # reserved GPUs that are lost to it, and the best other set
        if is_needed and workload is not None and workload.who == who:  # not another pod of the same name
            try:
                allowance = self._allowance(workload)
                if allowance is None:
                    is_needed = False  # the cap of its tenant keeps all GPUs from it: free ones would be of no use
                else:
                    lost = self._reservable.lost(workload, allowance, held.gpus)
                    # The search for another set is long. ``judge`` reads its result only in these two cases.
                    if lost or reservation_rules.has_used_up(held, terms):
                        alternative = await self._reservable.best(workload, allowance, besides=held.gpus)
            except WordError:
                is_needed = False  # its request was changed, and cannot be read
        # 3. Decide. Events during the search can have counted more idle time.
        held, now = self._held[who], self._clock()
        step, why = reservation_rules.judge(
            held, current=current, alternative=alternative, terms=terms, now=now, is_needed=is_needed, lost=lost
        )
        if step is Step.KEEP:
            return
        if step is Step.MOVE and alternative is not None:
            self._held[who] = reservation_rules.move(held, alternative, now, for_cost=not lost)
            logger.info("reserved for %s: other GPUs, on %s: %s", who, nodes_of(self._held[who]), why)
        else:
            del self._held[who]
            # It came to nothing if the workload still waits, or is gone without a place after a high cost. Then its
            # tenant waits longer for the next reservation, unless reserved GPUs were lost.
            is_in_vain = is_needed or (not is_placed(self._picture, who) and reservation_waits.is_in_vain(held, terms))
            if is_in_vain and not lost and self.terms is not None:
                self._waiting.fail(who, self._account(key_of(who)[0]), terms, now)
            logger.info("nothing is reserved for %s any more: %s", who, why)
        self._apply(who)

    async def _look(self, terms: Terms) -> None:
        """Note since when workloads are blocked; reserve GPUs for workloads that have waited too long.

        A workload is blocked if it found no place. ``terms`` are the reservation rules of the policies file.
        """
        now = self._clock()
        self._forget_others(now)
        workloads = await self._reservable_workloads()
        for workload in workloads:
            self._waiting.begin(workload.who, now)
        workload_of = {workload.who: workload for workload in workloads}
        blocked = [self._blocked(each, terms, now) for each in workloads if each.who not in self._hopeless]
        blocked.sort(key=lambda each: (-each.priority, self._waiting.had(each.who)))  # else in the order of the queue
        # After a reservation that came to nothing, its partition has none for a while.
        resting = {
            self._tenants.partition(account.who)
            for account in self._waiting.accounts()
            if reservation_rules.rests(account.at, account.failed, terms, now)
        }
        for _ in range(TRIES):
            due = reservation_rules.due(blocked, self._held.values(), terms, now, resting=resting)
            if not due:
                return
            for first in due:
                await self._reserve(workload_of[first.who], first)
                blocked.remove(first)

    def _forget_others(self, now: float) -> None:
        """Forget the waiting times of workloads that no longer wait.

        If no GPUs that could be reserved for a workload were found, no search is made for it for ``HOPELESS_S``
        seconds. This method ends the pauses that are over. ``now`` is in seconds since the epoch.
        """
        self._waiting.keep(lambda who: waits(self._picture, who), now)
        self._hopeless = {who: until for who, until in self._hopeless.items() if now < until <= now + HOPELESS_S}

    async def _reservable_workloads(self) -> list[PendingWorkload]:
        """Return the blocked workloads for which GPUs may be reserved, in queue order."""
        workloads, clock = list[PendingWorkload](), asyncio.get_running_loop().time
        slice_ends = clock() + SLICE_S
        for workload in list(self._queue.first_blocked()):
            if clock() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = clock() + SLICE_S
            if self._may(workload):
                workloads.append(workload)
        return sorted(workloads, key=lambda workload: self._queue.turn(workload.key, workload.order))

    def _may(self, workload: PendingWorkload) -> bool:
        """Return whether GPUs may be reserved for a workload.

        All of these must hold:

        * GPUs can be reserved for workloads of this kind (``Reservable.is_for``).
        * Kueue does not manage the workload's tenant.
        * The tenant's cap, if it is reached, still allows some of the workload's pods.
        """
        if not self._reservable.is_for(workload) or self._tenants.by_kueue(self._tenants.of(workload.key[0])):
            return False
        return not self._queue.closed(workload.key) or self._allowance(workload) is not None

    def _allowance(self, workload: PendingWorkload) -> Allowance | None:
        """Return the pods and GPUs that limits allow a workload; None if they deny all.

        A tenant's cap is such a limit.

        Raises:
            WordError: The workload's request cannot be read.
        """
        try:
            return self._limits.allow(workload)
        except LimitError:
            return None

    def _account(self, namespace: str) -> str:
        """Return the account to which a workload's failed reservation is charged.

        The account is the tenant of the namespace; ``namespace/NAME`` if the namespace has no tenant. An account with
        failures gets its next reservation later.
        """
        return self._tenants.of(namespace) or f"namespace/{namespace}"

    def _blocked(self, workload: PendingWorkload, terms: Terms, now: float) -> Blocked:
        namespace = workload.key[0]
        account = self._account(namespace)
        return Blocked(
            who=workload.who,
            tenant=self._tenants.of(namespace),
            partition=self._tenants.partition_of(namespace),
            since=self._waiting.since(workload.who, account),
            failed=self._waiting.failed(account, terms, now),
            priority=-workload.order[0],
        )

    async def _reserve(self, workload: PendingWorkload, blocked: Blocked) -> None:
        try:
            allowance = self._allowance(workload)
            found = None if allowance is None else await self._reservable.best(workload, allowance)
        except WordError:
            found = None
        if (
            self._workloads.get(workload.key) is not workload
            or workload.key not in self._queue
            or not waits(self._picture, workload.who)
        ):
            return  # it has its place, or is gone
        # What is free already does not lack GPUs, and keeping these from others would not help it.
        if found is None or not found.uses or len(self._held) >= stored.MOST_KEPT:
            self._hopeless[workload.who] = self._clock() + HOPELESS_S
            return
        held = self._held[workload.who] = reservation_rules.reserve(blocked, found, self._clock())
        logger.info("reserved for %s: %s", workload.who, reservation_rules.reason(held))
        self._apply(workload.who)

    # What it costs.

    def evictions_changed(self) -> None:
        """Write the stored record of evictions again, because a workload was evicted."""
        self._news = True
        self._woken.set()

    def gpus_changed(self) -> None:
        """Count idle time and check reservations, because a reserved GPU was allocated or became free."""
        self._count(self._clock())
        self._woken.set()

    def _count(self, now: float) -> None:
        for who, held in self._held.items():
            counted = self._held[who] = reservation_rules.counted(held, self._idle.get(who, 0), now)
            metrics.RESERVED_IDLE.inc(counted.idle_gpu_s - held.idle_gpu_s)
            idle = idle_gpus_of(self._picture, counted)
            self._more_idle |= idle > self._idle.get(who, 0)
            self._idle[who] = idle

    def _pause_s(self) -> float:
        """Return the seconds until the next step of all reservations.

        The next step is due every ``LOOK_S`` seconds. It is due earlier if a reservation reaches its limit of idle GPU
        time before that. The reservation must then end or move, and no event reports this moment.
        """
        now, terms = self._clock(), self.terms
        if terms is None:
            return LOOK_S
        ends = (reservation_rules.runs_out_at(each, self._idle.get(who, 0), terms) for who, each in self._held.items())
        pauses = (at - now for at in ends if at is not None)
        return max(min([LOOK_S, *pauses]), SHORTEST_PAUSE_S)

    def _apply(self, who: str = "", *, news: bool = True) -> None:
        """Copy the reservations into the cluster cache, and put their workloads on the agenda.

        Args:
            who: The workload whose reservation changed; empty for all.
            news: Whether the reservations must be stored again soon.
        """
        self._count(self._clock())
        self._by_key = {key_of(name): name for name in self._held}
        self._limits.put(self, in_force=bool(self._held))
        self._idle = {name: idle for name, idle in self._idle.items() if name in self._held}
        self._picture.inventory.reserve({gpu: held.who for held in self._held.values() for gpu in held.gpus})
        self._picture.version += 1
        self._news |= news
        self._more_idle = True
        metrics.RESERVED.set(sum(len(each.gpus) for each in self._held.values()))
        self._agenda.wake()
        for name in (who,) if who else self._held:
            self._agenda.add(key_of(name))

    # Over leaders.

    async def _load(self, store: ReservationStore | None) -> None:
        failures = 0
        while store is not None:
            try:
                self.restore(await store.load())
                return
            except DriverError as error:
                logger.warning("The ConfigMap of reservations cannot be read: %s. The controller tries again.", error)
            await asyncio.sleep(wait_s(failures, first_s=_RETRY_S, longest_s=WRITE_S))
            failures += 1

    def restore(self, written: stored.Written) -> None:
        """Take over the reservations that a previous leader stored.

        How many reserved GPUs were idle since then is not known. The larger of two numbers is assumed: the idle GPUs
        when the previous leader stored them, and the idle GPUs now. ``written`` is the contents of the store.
        """
        now = self._clock()
        self._waiting.restore(written.blocked, written.failed, self._account)
        self._evicted.restore(written.evicted)
        for held, idle in reservation_access.read(written):
            known = msgspec.structs.replace(held, counted_at=min(held.counted_at, now))
            self._held[held.who] = reservation_rules.counted(known, max(idle, idle_gpus_of(self._picture, held)), now)
        self._last = written.kept, written.blocked, written.failed, written.evicted
        self._apply()

    async def _save_in_time(self, store: ReservationStore) -> NoReturn:
        """Write the reservations to ``store`` after each step that changed them, until cancelled."""
        while True:
            await self._stepped.wait()
            self._stepped.clear()
            if self._is_due():
                await self.save(store)

    def _is_due(self) -> bool:
        age_s = self._clock() - self._written_at
        return self._news or (self._more_idle and age_s >= SOON_S) or not 0 <= age_s < WRITE_S

    async def save(self, store: ReservationStore) -> None:
        """Store the reservations, unless the store already has the same."""
        now = self._clock()
        kept = [reservation_access.write(each, self._idle.get(who, 0)) for who, each in self._held.items()]
        blocked, failed = self._waiting.written(self.terms or Terms(), now)
        news = kept, blocked[: stored.MOST_BLOCKED], failed, self._evicted.all()[-stored.MOST_EVICTED :]
        self._news = self._more_idle = False
        self._written_at = now
        if news == self._last:
            return
        if await store.save(*news):
            self._last = news
        else:
            self._more_idle = True
