"""Finds sets of GPUs that can be reserved for a waiting workload, and until when other pods use them.

``Reservations`` calls it.

A *candidate* is a set with the claims that use it now. An *allowance* says which pods of a workload may have a place
under the limits, such as a tenant's cap, and on which GPUs. A tenant's *partition* is the GPUs that the policies file
gives to it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Device, Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived.end_times import ends_at, given_at
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.pod_resources import Amounts
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.gang_terms import GangTerms, terms_of
from dradriver.controller.placing.plan import plan
from dradriver.queue import reservation_rules
from dradriver.queue.limits import Allowance, closed_nodes
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.placement_request import PlacementRequest
from dradriver.queue.reservation_access import MOST_GPUS
from dradriver.queue.reservation_rules import Candidate, Use

SLICE_S: Final = 0.005  # of work before others get the loop

Ready = tuple[int, float]
"""When a GPU becomes free, as a sort key; ``(0, seconds since the epoch)`` if the ends of all its claims are known.

Else ``(1, seconds)``: for how long a claim without a known end has run.
"""

_FREE: Final[Ready] = (0, 0.0)


class Reservable:
    """Finds sets of GPUs that can be reserved, whether or not they are free now.

    A set is better the sooner its present users end.
    """

    def __init__(self, picture: Picture, clock: Callable[[], float]) -> None:
        """Make a search in ``picture``; ``clock`` gives seconds since the epoch."""
        self._picture, self._clock = picture, clock

    def is_for(self, workload: PendingWorkload) -> bool:
        """Return whether GPUs can be reserved for a workload.

        All of these must hold:

        * It requests whole GPUs, without sharing a claim, and no NICs. When NICs become free is not known, so reserved
          GPUs could stay idle.
        * All its pods that need a place have their scheduling gates.
        * It is not a pod that joins a running gang: the place of this pod must be near the gang.
        * It is not a gang of which some pods have places.
        """
        try:
            wishes = [member.wish for member in workload.asking]
        except WordError:
            return False
        for member, wish in zip(workload.asking, wishes, strict=True):
            if not isinstance(wish.request, Whole) or wish.shared or wish.nics is not None or not member.pod.gated:
                return False
        if not workload.is_gang:
            return not workload.lead.near
        return not any(gang_plan.is_placed(self._picture, member) for member in workload.members)

    def current(self, gpus: Sequence[Device], besides: Iterable[Key] = ()) -> Candidate:
        """Return the GPUs ``gpus`` with the claims that use them now.

        Claims in ``besides`` are left out.
        """
        ends = _Ends(self._picture, self._clock())
        return ends.candidate(gpus, frozenset(besides))

    def lost(self, workload: PendingWorkload, allowance: Allowance, gpus: Sequence[Device]) -> list[Device]:
        """Return the reserved GPUs that a workload can no longer have.

        It could not have them even if all pods on them ended: for example, they are unhealthy or in another partition
        now. ``gpus`` are the reserved GPUs. ``allowance`` says which pods of the workload may have a place under the
        limits, such as a tenant's cap, and on which GPUs.
        """
        open_rows = self._open_to_any(workload, allowance)
        rows = {node: self._picture.nodes.find(node) for node in {node for node, _ in gpus}}
        open_nodes = {node for node, row in rows.items() if row is not None and open_rows[row]}
        in_partition = {gpu for node in rows for gpu in _within(self._picture, workload.key[0], node)}
        is_usable = self._picture.inventory.usable
        return [gpu for gpu in gpus if gpu[0] not in open_nodes or gpu not in in_partition or not is_usable(gpu, None)]

    async def best(
        self, workload: PendingWorkload, allowance: Allowance, besides: Iterable[Device] = ()
    ) -> Candidate | None:
        """Return the best set of GPUs to reserve for a workload; None if there is none.

        The event loop runs other tasks during the search.

        Args:
            workload: The workload.
            allowance: Which of its pods may have a place under the limits, and on which GPUs.
            besides: The set that is reserved already; it is not returned again. The returned set may have GPUs in
                common with it. If the reservation moves, these GPUs stay reserved.

        Raises:
            WordError: The workload's request cannot be read.
        """
        excluded = tuple(sorted(besides))
        if (gang := terms_of(self._picture, workload)) is not None:
            planned = await self._best_of_gang(workload, allowance, gang)
            if planned is None or planned.gpus == excluded or not self._in_time(workload, planned, self._clock()):
                return None
            return planned
        best: Candidate | None = None
        async for bound, candidate in self._sets_of_nodes(workload, allowance):
            now = self._clock()
            # Nodes come in the order of their bounds: no later node has a set that is ready sooner.
            if best is not None and bound > reservation_rules.readiness(best, now)[:2]:
                break
            if candidate is not None and candidate.gpus != excluded and self._in_time(workload, candidate, now):
                best = reservation_rules.best((candidate, *filter(None, (best,))), now)
        return best

    def _in_time(self, workload: PendingWorkload, candidate: Candidate, now: float) -> bool:
        """Return whether a workload would end before any maintenance of the nodes begins.

        ``candidate`` is a set of GPUs on these nodes. The workload is assumed to begin once the GPUs are free. If this
        time is unknown, it is assumed to begin at ``now``.
        """
        ends = [use.ends_at for use in candidate.uses]
        begins = now if None in ends else max((at for at in ends if at is not None), default=now)
        leaving_nodes = self._picture.nodes.gone_by(max(begins, now) + workload.lasts_s)
        return leaving_nodes.isdisjoint(node for node, _ in candidate.gpus)

    def _open(self, wish: PlacementRequest, lasts_s: int) -> Bools:
        """Return a mask of the nodes that a pod may use once they are free: (rows,).

        ``lasts_s`` is how many seconds the pod runs; 0 for no limit. Nodes whose maintenance begins earlier are left
        out. There is one row per node.
        """
        fit = self._picture.nodes.open(msgspec.structs.replace(wish.ask, lasts_s=lasts_s))
        if wish.rules is not None:
            fit &= self._picture.neighbours.allowed(wish.pod, wish.rules, fit.copy())
        # The channel of multi-node NVLink may be in use: its user ends, as the users of the GPUs do.
        if self._picture.channels.domain_of(wish.pod) is not None:
            fit &= self._picture.nodes.channels(taken=True)
        return fit

    def _open_to_any(self, workload: PendingWorkload, allowance: Allowance) -> Bools:
        """Return a mask of the nodes that any pod of a workload may use: (rows,).

        ``allowance`` has the pods that limits allow a place. There is one row per node.
        """
        fit: Bools = np.logical_or.reduce([self._open(member.wish, workload.lasts_s) for member in workload.asking])
        return fit & ~self._picture.nodes.named(closed_nodes(self._picture, allowance.closed))

    async def _sets_of_nodes(
        self, workload: PendingWorkload, allowance: Allowance
    ) -> AsyncIterator[tuple[Ready, Candidate | None]]:
        """Yield for each node a time, and its first set of GPUs that becomes free.

        No set of the node is free before this time. At this time the node has as many free GPUs as the pod requests, in
        any combination. The set that fits the pod may become free only later. The nodes come in the order of these
        times. The set is None if the node has no set for the pod. ``allowance`` has the pods and GPUs that limits, such
        as a tenant's cap, leave to the workload.
        """
        wish, clock = workload.lead.wish, asyncio.get_running_loop().time
        assert isinstance(wish.request, Whole), "asked before"
        requested = wish.request.gpus
        ends = _Ends(self._picture, self._clock(), workload)
        fleet = self._idle_fleet(workload.key[0])
        bounds: list[tuple[Ready, str, list[tuple[Ready, str]]]] = []
        pause_at = clock() + SLICE_S
        for node, is_open in self._nodes(self._open_to_any(workload, allowance)):
            ready = ends.ready(node) if is_open else []
            if len(ready) >= requested:
                # ``ready`` has the node's GPUs by when they become free, the earliest first.
                when_enough, _ = ready[requested - 1]
                bounds.append((when_enough, node, ready))
            if clock() > pause_at:
                await asyncio.sleep(0)
                pause_at = clock() + SLICE_S

        heapq.heapify(bounds)
        while bounds:
            bound, node, ready = heapq.heappop(bounds)
            yield bound, self._first(wish, fleet, node, ready, ends) if node in fleet.nodes else None
            if clock() > pause_at:
                await asyncio.sleep(0)
                pause_at = clock() + SLICE_S

    def _first(
        self, wish: PlacementRequest, fleet: Fleet, node: str, ready: Sequence[tuple[Ready, str]], ends: _Ends
    ) -> Candidate | None:
        """Return a node's first set of GPUs that becomes free and fits a pod.

        None if there is none.

        Args:
            wish: The pod's request.
            fleet: A copy of the fleet. This method changes which GPUs of the node count as free in it.
            node: The node.
            ready: The node's GPUs, each with the time when it becomes free, earliest first.
            ends: When claims end.
        """
        pool = self._picture.inventory.pool(node)
        if pool is None or not isinstance(wish.request, Whole):
            return None
        names = {number: device for number, (device, _) in pool.devices.items()}
        for most in range(wish.request.gpus, len(ready) + 1):
            fleet.set_free(node, pool.numbers({device for _, device in ready[:most]}))
            try:
                chosen = fleet.rank(wish.request, eligible={node}, limit=1, explain=False)[0]
            except NoPlaceError:
                continue
            gpus = sorted((node, names[number]) for number in chosen.gpus)
            return ends.candidate(gpus) if self._has_room(wish, node, gpus) else None
        return None

    def _has_room(self, wish: PlacementRequest, node: str, gpus: Iterable[Device]) -> bool:
        """Return whether a node has the requested CPU, memory and so on for a pod.

        The pods that use ``gpus`` count as ended.
        """
        picture, row = self._picture, self._picture.nodes.find(node)
        if row is None:
            return False
        takes = self._taken(gpus)
        resources = [resource for resource, _ in wish.ask.amounts]
        left = picture.nodes.left(resources)[row]
        for at, (resource, amount) in enumerate(wish.ask.amounts):
            freed = sum(amounts.get(resource, 0) for where, amounts in takes if where == node)
            if int(left[at]) + freed < amount:
                return False
        return True

    def _taken(self, gpus: Iterable[Device]) -> list[tuple[str, Amounts]]:
        """Return the node and resources (CPU, memory, ...) of each pod that uses these GPUs."""
        picture = self._picture
        pods = {
            pod for gpu in gpus for claim in picture.inventory.holders(gpu) for pod in picture.claim_users.of(claim)
        }
        return [taken for pod in sorted(pods) if (taken := picture.node_usage.by(pod))]

    async def _best_of_gang(self, workload: PendingWorkload, allowance: Allowance, gang: GangTerms) -> Candidate | None:
        """Return the GPUs of a gang's plan on the nodes that become free first.

        ``allowance`` says which pods may have a place under the limits, and on which GPUs. ``gang`` is the gang's
        request as a whole. Returns None if there is no plan, or if it has more than ``MOST_GPUS`` GPUs.
        """
        ends = _Ends(self._picture, self._clock(), workload)
        nodes = [node for node, is_open in self._nodes(self._open_to_any(workload, allowance)) if is_open]
        # A node counts as free when the last of its GPUs is.
        free_at = sorted((ready[-1][0], node) for node in nodes if (ready := ends.ready(node)))
        names = [node for _, node in free_at]
        leaving = self._taken(gpu for node in names for gpu in _all(self._picture, node))
        if not names or (places := self._places(workload, allowance, gang, names, ends, leaving)) is None:
            return None

        # A binary search for the fewest first nodes with a plan: if some are enough, more are, too.
        low, high = 1, len(names)
        while low < high:
            await asyncio.sleep(0)
            middle = (low + high) // 2
            if (places_on_fewer := self._places(workload, allowance, gang, names[:middle], ends, leaving)) is None:
                low = middle + 1
            else:
                high, places = middle, places_on_fewer
        gpus = sorted({device for place in places.values() for device in place.taken})
        return ends.candidate(gpus) if len(gpus) <= MOST_GPUS else None

    def _places(
        self,
        workload: PendingWorkload,
        allowance: Allowance,
        gang: GangTerms,
        names: Sequence[str],
        ends: _Ends,
        leaving: Collection[tuple[str, Amounts]],
    ) -> Mapping[Member, Placement] | None:
        """Return a gang's places on nodes as if these were free; None if no plan fits.

        Args:
            workload: The gang.
            allowance: Which members of the gang may have a place under the limits, and on which GPUs.
            gang: What the gang requests as a whole.
            names: The nodes.
            ends: Returns which GPUs of each node the gang can have, and from when on.
            leaving: For each pod that uses these GPUs now, and so counts as ended: its node, and its amounts of CPU,
                memory and other resources.
        """
        picture, fleet = self._picture, self._idle_fleet(workload.key[0])
        for node in names:
            pool = picture.inventory.pool(node)
            if pool is not None and node in fleet.nodes:
                fleet.set_free(node, pool.numbers({device for _, device in ends.ready(node)}))
        others = set(fleet.nodes).difference(names)
        # Pods without GPUs stay, with what they have of CPU and memory.
        snapshot = Snapshot(picture, workload.key[0]).without(pod_usage=leaving).offering(fleet).avoiding(others)
        try:
            return plan(snapshot, allowance.members or workload.asking, gang)
        except NoPlaceError:
            return None

    def _idle_fleet(self, namespace: str) -> Fleet:
        """Return a copy of all GPUs as ``namespace`` sees them, with none of them free.

        The copy has no fractions of GPUs. The caller then sets which GPUs count as free.
        """
        picture = self._picture
        picture.fleets.locate(picture.nodes.labels(), namespace)
        fleet = picture.fleets.of(namespace)
        fleet = fleet.copied(fleet.nodes)
        for node in fleet.nodes:
            fleet.set_parts(node, {})
            fleet.set_free(node, ())
        return fleet

    def _nodes(self, fit: Bools) -> list[tuple[str, bool]]:
        rows = ((node, self._picture.nodes.find(node)) for node in self._picture.inventory.pools())
        return [(node, row is not None and bool(fit[row])) for node, row in rows]


class _Ends:
    """Looks up when claims end; remembers each claim's answer."""

    def __init__(self, picture: Picture, now: float, workload: PendingWorkload | None = None) -> None:
        self._picture, self._now, self._workload = picture, now, workload
        self._at: dict[Key, float | None] = {}  # by claim: its end; None if it is not known

    def of(self, claim: Key) -> float | None:
        if claim not in self._at:
            self._at[claim] = ends_at(self._picture, claim, self._now)
        return self._at[claim]

    def ready(self, node: str) -> list[tuple[Ready, str]]:
        """Return a node's GPUs that the workload can have, each with when it becomes free.

        They are sorted, the earliest first. GPUs that are reserved for another workload, or that cannot be used whole,
        are left out.
        """
        assert self._workload is not None, "nobody else asks"
        inventory, who = self._picture.inventory, self._workload.who
        every = _within(self._picture, self._workload.key[0], node)
        usable = [gpu for gpu in every if inventory.usable(gpu, None) and inventory.reserved.whose(gpu) in ("", who)]
        return sorted((self._of(gpu), gpu[1]) for gpu in usable)

    def _of(self, gpu: Device) -> Ready:
        latest = _FREE
        for claim in self._picture.inventory.holders(gpu):
            at = self.of(claim)
            latest = max(latest, (1, self._running_s(claim)) if at is None else (0, at))
        return latest

    def candidate(self, gpus: Sequence[Device], besides: frozenset[Key] = frozenset()) -> Candidate:
        """Return the GPUs ``gpus`` with the claims that use them, and when these end.

        Claims in ``besides`` are left out.
        """
        counts: dict[Key, int] = {}
        for gpu in gpus:
            for claim in self._picture.inventory.holders(gpu):
                if claim not in besides:
                    counts[claim] = counts.get(claim, 0) + 1
        uses = (
            Use(
                who=self._who(claim),
                gpus=count,
                ends_at=self.of(claim),
                work_gpu_s=reservation_rules.expected_work(count, self._running_s(claim)),
            )
            for claim, count in sorted(counts.items())
        )
        return Candidate(gpus=tuple(gpus), uses=tuple(uses))

    def _running_s(self, claim: Key) -> float:
        at = given_at(self._picture.claims.get(claim))
        return 0.0 if at is None else max(self._now - at, 0.0)

    def _who(self, claim: Key) -> str:
        """Return how messages name the user of a claim: ``NAMESPACE/NAME`` of its first pod.

        If the claim has no pod, return the claim's name.
        """
        pods = self._picture.claim_users.of(claim)
        return "/".join(next(iter(pods))) if pods else f"claim {'/'.join(claim)}"


def _all(picture: Picture, node: str) -> list[Device]:
    """Return all GPUs of a node."""
    pool = picture.inventory.pool(node)
    return [] if pool is None else [(node, device) for device, _ in pool.devices.values()]


def _within(picture: Picture, namespace: str, node: str) -> list[Device]:
    """Return the GPUs of a node that a namespace's workloads may have by their partition."""
    pool, own = picture.inventory.pool(node), picture.fleets.open_to(namespace, node)
    every = {} if pool is None else pool.devices
    return [(node, device) for number, (device, _) in every.items() if own is None or number in own]
