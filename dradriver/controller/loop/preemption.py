"""Preemption: gives a workload the GPUs of workloads with lower priority, within the limits of the policies file.

state    record in the API                                     next state when              else
blocked  a gated pod, or all pods of a gang                    enough victims are found     waits
placed   claims that name the victims and a deadline           all claims exist             revoked: no victim was told
ungated  no gate                                               victims are told to end      revoked
ending   victims that were told, or whose owner is suspended   all victims are gone         revoked at the deadline
free     claims whose victims are gone                         it is allocated and bound    its usual deadlines

Any leader reads all of this from the claims (``api/claims/preemption_note.py``). No pod is told to end before all
claims exist and all gates are removed. No pod is told twice: the write that tells a pod names its version, and changes
it.

A *victim* is a workload that preemption ends. A *plan* is one preemption: the claims for a waiting workload, and its
victims. A *note* is the annotation on a claim that names the pods that must end first.
"""

from __future__ import annotations

import collections
import logging
import math
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key
from dradriver.api.claims.preemption_note import Preempts, Victim
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Preemption as Terms
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller import metrics
from dradriver.controller.loop.preemptable import Preemptable
from dradriver.controller.loop.preemption_turns import PreemptionTurns
from dradriver.controller.owners.evictions import Evictions
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.gang_terms import terms_of
from dradriver.controller.placing.preemption_plan import plan_preemption
from dradriver.controller.placing.preemption_search import Found
from dradriver.controller.steps.ending import Ending
from dradriver.controller.writing.executor import Executor
from dradriver.controller.writing.write_outcome import MovedOnError, RefusedError
from dradriver.counted import first_of
from dradriver.queue.eviction_record import EvictionRecord
from dradriver.queue.limits import Allowance, LimitError, Limits, closed_nodes
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.waiting import Queue
from dradriver.queue.write_lanes import Lanes, Slot
from dradriver.reason import Cause, Reason

logger = logging.getLogger(__name__)

MOST_LOOKS: Final = 4  # plans that are tried in one look: each takes some ten milliseconds in a large cluster
MOST_ASKED: Final = 8  # workloads of one tenant with a cap whose cap is looked at in one look: thousands may be parked
LEAST_MARGIN_S: Final = 5.0  # for the writes of a plan
NAMED: Final = 3  # workloads that a reason names
SAME_DAY_S: Final = 12 * 3600.0  # from which on a reason says the day, too
OFF: Final = "Preemption was switched off in the policies file."


class _Answer(NamedTuple):
    """The result of a try to preempt for a workload.

    Attributes:
        plans: How many searches for victims and places were made.
        ended: How many workloads have to end for the places; 0 if no places were found, or if too many would have to
            end now.
        changes_at: When the result can change without an event, in seconds since the epoch.
        room_at: When the limit per minute allows enough evictions, in seconds since the epoch; None if this limit is
            not the obstacle.
    """

    plans: int
    changes_at: float
    ended: int = 0
    room_at: float | None = None


class Preemptions:
    """Finds places by preemption, and follows each preemption to its end."""

    def __init__(
        self,
        picture: Picture,
        queue: Queue,
        lanes: Lanes,
        tenants: Tenants,
        executor: Executor,
        evictions: Evictions,
        limits: Limits,
        evicted: EvictionRecord,
    ) -> None:
        """Begin with preemption off, until ``follow`` is called.

        Args:
            picture: The cluster cache.
            queue: The waiting workloads.
            lanes: Limit the writes that run at once; say for which workloads writes may begin now.
            tenants: Give the tenant of a namespace, and the highest priority that it may use.
            executor: Runs writes.
            evictions: Ends pods.
            limits: Says which GPUs a workload may have.
            evicted: The workloads that were evicted lately, also by previous leaders.
        """
        self._picture, self._queue, self._lanes, self._tenants = picture, queue, lanes, tenants
        self._executor, self._evictions, self._limits = executor, evictions, limits
        self._preemptable = Preemptable(picture, tenants, evictions, limits, evicted)
        self._turns = PreemptionTurns(picture)

    @property
    def _terms(self) -> Terms:
        return self._preemptable.terms

    def begin(self) -> None:
        """Begin as the leader: the evictions of previous leaders are then read from the claims."""
        self._preemptable.begin()

    def follow(self, policies: Policies) -> None:
        """Use the preemption rules of these policies from now on."""
        self._preemptable.terms = policies.queue.preemption
        self._turns.clear()

    # Who gets a place.

    def look(self) -> bool:
        """Try preemption for workloads that found no place; return whether places were found.

        It tries the workloads in the queue's order, until it has made ``MOST_LOOKS`` searches, or no evictions are left
        for this minute. It tries at most ``MOST_ASKED`` workloads of a tenant with a cap.
        """
        if not self._terms.enabled or not len(self._queue) or not self._lanes.room():
            return False
        now = time.time()
        evictions_left = self._preemptable.left(now)  # workloads that may still be told to end in this minute
        plans = 0  # of all tries in this look
        cap_looks: collections.Counter[str] = collections.Counter()  # by tenant with a cap
        is_found = False
        waiting = self._queue.blocked()  # the workloads that found no place, in order; they stay in the queue
        # Forget the tries of all others, and save evictions for no workload that cannot use them.
        self._turns.keep(waiting, can_use=self._can_use)
        for workload in waiting:
            if plans >= MOST_LOOKS or evictions_left <= 0:
                break
            # Due: its pause is over, something has changed since its last try, and no evictions are saved for another.
            if not self._turns.is_due(workload, now) or not self._may_preempt(workload):
                continue
            # Thousands of workloads can be parked at a cap, and each look at a cap takes time.
            tenant = self._tenants.of(workload.key[0])
            cap_looks[tenant] += bool(self._tenants.caps(tenant))
            if cap_looks[tenant] > MOST_ASKED:
                continue
            self._turns.begin(workload)  # from now on its pause runs, also if the try ends with an error
            plans += 1  # a try that ends with an error counts as one plan
            try:
                answer = self._try(workload, self._limits.allow(workload), now, most=evictions_left)
            except LimitError:
                plans -= 1  # it came to no plan
                continue  # no pod ends for a workload that the cap of its tenant keeps waiting
            except WordError:
                continue  # the dispatcher's next look at it writes that its request cannot be read
            except Exception:  # a bug in what one workload meets must not stop the others
                logger.exception("Pod %s/%s: internal error. No pod is preempted for it.", *workload.key)
                continue
            plans += answer.plans - 1
            evictions_left -= answer.ended
            is_found |= answer.ended > 0
            self._turns.end(
                workload, now, is_found=answer.ended > 0, changes_at=answer.changes_at, room_at=answer.room_at
            )
        return is_found

    def _can_use(self, workload: PendingWorkload) -> bool:
        """Return whether evictions can help a queued workload now.

        They cannot if, for example, its tenant's cap leaves it no GPUs.
        """
        if workload.key not in self._queue or not self._may_preempt(workload):
            return False
        try:
            self._limits.allow(workload)
        except (LimitError, WordError):
            return False
        return True

    def _may_preempt(self, workload: PendingWorkload) -> bool:
        """Return whether a workload may preempt others, and writes for it may begin now."""
        if workload.busy or any(member.pod.spec.preemption_policy == "Never" for member in workload.members):
            return False
        if self._tenants.by_kueue(self._tenants.of(workload.key[0])):
            return False  # Kueue ends others for its own
        if workload.key in self._picture.gangs and any(
            gang_plan.has_claim(self._picture, one) for one in workload.members
        ):
            return False  # some have places already: the others get theirs beside them
        if self._bound_to_others(workload):
            return False
        return self._lanes.obstacle(workload.key, workload.order, schedulers=workload.schedulers) is None

    def _bound_to_others(self, workload: PendingWorkload) -> bool:
        """Return whether a pod joins a running gang that restricts the places of its pods.

        Examples are a required network level, and a largest number of nodes. No preemption is tried for these pods.
        """
        of = self._picture.gangs.of(workload.key) if workload.lead.near else None
        if of is None or of.wants is None:
            return False
        near = of.wants.near is not None and not of.wants.near.preferred
        return near or any((of.wants.max_nodes, of.wants.min_gpus_per_node, of.wants.min_network_gbps))

    def _try(self, workload: PendingWorkload, allowance: Allowance, now: float, *, most: int) -> _Answer:
        """Find places for a workload by preemption, and start their writes.

        ``allowance`` says which members may have a place under the limits, and on which GPUs. At most ``most`` other
        workloads may be ended for it now.
        """
        scenes, changes_at = self._preemptable.scenes(workload, now)
        scene = scenes[-1]  # of all that may end
        if not scene.workloads:
            return _Answer(0, changes_at)
        avoid = closed_nodes(self._picture, allowance.closed).union(workload.failures.tried)
        if workload.lead.near:  # how long the others of its gang last it does not say
            avoid |= self._picture.nodes.gone_by(math.inf)
        elif workload.lasts_s:  # it begins when those have ended
            latest = max((now + scene.grace_s, *(one.ends_at for one in scene.ending)))
            avoid |= self._picture.nodes.gone_by(latest + self._margin_s + 1 + workload.lasts_s)
        terms = terms_of(self._picture, workload)
        plans, found = 0, None
        while found is None and plans < len(scenes):
            found = plan_preemption(self._picture, allowance.members, scenes[plans], terms, avoid=avoid)
            plans += 1
        if found is None:
            return _Answer(plans, changes_at)
        if len(found.victims) > most and (at := self._preemptable.room_at(len(found.victims), now)) is not None:
            return _Answer(plans, min(changes_at, at), room_at=at)
        self._commit(workload, self._named(found, now), found.victims)
        return _Answer(plans, changes_at, ended=len(found.victims))

    @property
    def _margin_s(self) -> float:
        """Return by how many seconds a place outlasts the longest grace period of its victims.

        The grace period begins only after some writes. They take a part of this time.
        """
        return max(self._terms.margin_seconds, LEAST_MARGIN_S)

    def _named(self, found: Found, now: float) -> dict[Member, Placement]:
        """Return the places of ``found``, with notes of the pods that must end first.

        The note of a place names the pods on its node that must end, and the pods there that are already being deleted.
        A victim that is a gang can have pods on the nodes of several places. Then the first of these places names all
        pods of the gang, and each other place names only the pods on its own node. ``now`` is in seconds since the
        epoch.
        """
        grace_s = max(victim.grace_s for victim in found.victims)
        until = max(now + grace_s, *(pod.ends_at for pod in found.ending), 0.0) + self._margin_s
        why = self._why(found.victims, now, grace_s)
        unnamed = {victim.key for victim in found.victims}
        places: dict[Member, Placement] = {}
        for member, place in found.places.items():
            pods = [pod for pod in found.ending if pod.node == place.node]
            victims = [victim for victim in found.victims if any(pod.node == place.node for pod in victim.pods)]
            new = [victim for victim in victims if victim.key in unnamed]
            for victim in victims:
                pods += [pod for pod in victim.pods if victim.key in unnamed or pod.node == place.node]
                unnamed.discard(victim.key)
            preempts = Preempts(
                at=int(now),
                until=int(until) + 1,
                victims=tuple(Victim(*pod.key, pod.pod.metadata.uid) for pod in pods),
                spare=tuple(victim.lineage for victim in new),
                why=why,
            )
            places[member] = msgspec.structs.replace(place, preempts=preempts) if pods else place
        return places

    @staticmethod
    def _why(victims: Sequence[Workload], now: float, grace_s: float) -> str:
        ordered = sorted(victims, key=lambda workload: workload.key)
        names = first_of([f"{workload.shown} (priority {workload.priority})" for workload in ordered], NAMED)
        day = "%Y-%m-%d " if grace_s >= SAME_DAY_S else ""
        by = f"{time.strftime(f'{day}%H:%M:%S', time.gmtime(now + grace_s))} UTC"
        ends = "end" if len(victims) > 1 else "ends"
        return f"Waiting for the preemption of {names}, which {ends} by {by}."

    def _commit(self, workload: PendingWorkload, places: dict[Member, Placement], victims: Sequence[Workload]) -> None:
        """Count a workload's ``places`` as used in the cluster cache, and write them.

        The workloads in ``victims`` are told to end only after these writes have succeeded.
        """
        for member, own in places.items():
            self._picture.promise(member.wish.claim, member.key, own)
        workload.finds_place()
        self._evictions.begin(workload.key)
        self._queue.drop(workload.key)
        why = next(own.preempts.why for own in places.values() if own.preempts is not None)
        logger.info("%s/%s %s", *workload.key, why)
        metrics.PREEMPTIONS.inc()
        metrics.PREEMPTED_UNITS.inc(len(victims))
        self._executor.start(workload, lambda slot: self._write(places, victims, slot), creates=True)

    async def _write(self, places: dict[Member, Placement], victims: Sequence[Workload], slot: Slot) -> None:
        try:
            await self._evictions.ask([one.pod for workload in victims for one in workload.pods])
        except BaseException:
            for member in places:
                self._picture.release(member.wish.claim)
            raise
        slot.begin()
        await self._executor.commit.place(places, slot)

    # What becomes of it.

    def stops(self, workload: PendingWorkload, ending: Ending) -> Reason | None:
        """Return why a preemption stops and its placement is revoked; None if it goes on.

        A preemption never stops once a victim has begun to end: its GPUs become free soon. ``ending`` has the
        preemption's claims and its victims.
        """
        if self._begun(ending):
            return None
        why = self._evictions.why_not(workload.key) if self._terms.enabled else OFF
        return Reason(Cause.ENDING, why) if why else None

    def _begun(self, ending: Ending) -> bool:
        """Return whether at least one victim of a preemption has begun to end.

        An eviction, or the suspension of an owner, counts before the cluster cache shows it. ``ending`` has the
        preemption's claims and its victims.
        """
        return ending.begun or self._evictions.has_begun(ending.pods)

    def end(self, workload: PendingWorkload, ending: Ending) -> None:
        """Tell those victims of a preemption to end that were not told yet.

        Args:
            workload: The workload that preempts.
            ending: Its claims, and the victims that have not been deleted yet.
        """
        # The pods whose eviction was not tried a moment ago: the cluster cache may not show that yet.
        untold_pods = self._evictions.untold(ending.pods)
        if not self._terms.enabled or not untold_pods:
            return
        claims = ending.claims
        others = f" and {len(workload.members) - 1} more of its gang" if len(workload.members) > 1 else ""
        for_whom = f"for {'/'.join(workload.lead.key)}{others} (priority {-workload.order[0]})"
        gpu_user_uids = {uid for claim in claims for uid in self._holders(claim)}  # of pods with the claims' GPUs

        def is_needed() -> bool:
            return self._terms.enabled and all(map(self._stands, claims)) and any(map(self._lives, workload.members))

        async def end_pods(slot: Slot) -> None:
            def go_on() -> None:  # raises if the API server wants a pause, or a claim of the workload was revoked
                self._executor.commit.go_on(slot)

            # 1. Ask the server whether the claims that name these pods still exist. The reflector may be late, and no
            #    pod may end for nothing.
            uids = {pod.metadata.uid for pod in untold_pods}
            naming = [
                claim for claim in claims if claim.preempts is not None and not uids.isdisjoint(claim.preempts.uids)
            ]
            if not await self._executor.commit.stand(naming):
                raise MovedOnError("what was promised to it does not stand any more")
            go_on()
            # 2. End the pods. If that is refused before any pod has begun to end, ``stops`` returns why in the next
            #    look at the workload, and its claims are deleted. So the error here only causes that look.
            try:
                await self._evictions.end(
                    workload.key,
                    untold_pods,
                    last=gpu_user_uids,
                    stands=is_needed,
                    begun=self._begun(ending),
                    until=ending.until,
                    why=for_whom,
                    go_on=go_on,
                )
            except RefusedError as error:
                raise MovedOnError(str(error)) from None

        self._executor.start(workload, end_pods)

    def _stands(self, claim: ClaimRecord) -> bool:
        """Return whether the cluster cache has this claim, and it is not being deleted."""
        known = self._picture.claims.get(claim.key)
        return known is not None and known.uid == claim.uid and not known.deleting

    def _lives(self, member: Member) -> bool:
        """Return whether the cluster cache has this member's pod, and it is not being deleted."""
        pod = self._picture.pods.get(member.key)
        return pod is not None and pod.metadata.uid == member.uid and pod.metadata.deletion_timestamp is None

    def _holders(self, claim: ClaimRecord) -> Iterable[str]:
        """Return the uids of the pods that now use the GPUs chosen for a claim.

        The pods that the claim was created for are left out. The result is empty if the claim's choice of GPUs cannot
        be read.
        """
        for device in () if claim.pin is None else claim.pin.taken:
            for key in self._picture.inventory.holders(device):
                if (other := self._picture.claims.get(key)) is not None and other.uid != claim.uid:
                    yield from (uid for _, uid in other.owners)

    def leaves(self, gang: Key) -> bool:
        """Return whether a running gang has a pod that preemption ends.

        Then the gang's other pods get no new places.
        """
        wanted = self._preemptable.to_end()
        if not wanted:
            return False
        pods = (self._picture.pods[key] for key in self._picture.gangs.pods(gang))
        return any(pod.metadata.uid in wanted and bool(pod.spec.node_name) for pod in pods)
