"""Who may have to end for others: by the policies, by who had to lately, and by what there is to end them with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from dradriver.api.base.objects import seconds
from dradriver.api.base.pods import Pod
from dradriver.api.claims.evicted_workloads import Evicted
from dradriver.api.claims.pins import Key
from dradriver.api.claims.preemption_note import Preempts
from dradriver.api.policies.tenant_policies import Preemption as Terms
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.derived.workloads import Workload
from dradriver.controller.owners.evictions import Evictions
from dradriver.controller.placing.preemption_search import Scene
from dradriver.controller.placing.running_workloads import RunningWorkloads
from dradriver.queue.eviction_record import EvictionRecord
from dradriver.queue.limits import Limits
from dradriver.queue.namespace_tenants import MINUTE_S, Tenants
from dradriver.queue.pending import PendingWorkload

UNREAD_S: Final = 30.0  # after which it is looked again whether the labels of a workload's namespace are read


class Preemptable:
    """Units that run, as far as they may have to end.

    Attributes:
        terms: What the policies file in force says of it.
    """

    def __init__(
        self,
        picture: Picture,
        tenants: Tenants,
        evictions: Evictions,
        limits: Limits,
        evicted: EvictionRecord,
    ) -> None:
        """Make one of whose workloads nobody may have to end.

        Args:
            picture: The cluster.
            tenants: Whose a namespace is, and what its priorities count.
            evictions: Says whether there is a way to end a workload.
            limits: Says whose reserved GPUs a workload may have.
            evicted: Who had to end lately, also by former leaders.
        """
        self.terms = Terms()
        self._picture, self._tenants, self._evictions, self._limits = picture, tenants, evictions, limits
        self._running, self._evicted = RunningWorkloads(picture), evicted
        self._is_restored = False

    def begin(self) -> None:
        """Count also what was evicted by former leaders: their claims say whom they had ended."""
        self._is_restored = False

    def left(self, now: float) -> int:
        """Return how many workloads may be preempted still, of those that may within a minute.

        Those count that were told to, and those of plans under way. A plan that comes to nothing costs nobody anything.
        """
        return self.terms.units_per_minute - len(self._counted(now))

    def room_at(self, count: int, now: float) -> float | None:
        """Return when so many may be preempted, seconds since the epoch; None if they may now.

        More than may end within a minute have to wait until nobody has ended for a minute.
        """
        counted = self._counted(now)
        most = max(self.terms.units_per_minute - count, 0)
        return counted[-most - 1] if len(counted) > most else None

    def _counted(self, now: float) -> list[float]:
        """Return until when each workload counts that was told to end lately, or is to be; sorted."""
        self._remember(now)
        ended = self._evictions.ended()
        planned = self._planned().difference([workload for workload, _ in ended])
        times = [at + MINUTE_S for at in self._evicted.former(now - MINUTE_S)]
        times += [now + MINUTE_S - ago_s for _, ago_s in ended]
        times += [now + MINUTE_S] * len(planned)
        return sorted(times)

    def scenes(self, wanting: PendingWorkload, now: float) -> tuple[list[Scene], float]:
        """Return which workloads are preemptable for another, which end already, and when that changes by itself.

        There are several scenes if workloads could not be ended before. They are to be tried in this order: without
        those, with those that were refused least often, with all. So a workload that cannot be ended does not delay a
        preemption twice while there are other victims.

        The time is in seconds since the epoch, infinite if nothing changes without an event.
        """
        priority = -wanting.order[0]  # an order begins with the negative priority
        changes: list[float] = []  # when the answer can become another one without an event

        # 1. The deleted pods that are gone soon: the waiting workload can have their GPUs.
        workloads, ending = self._running.all()
        margin_s, grace_s = self.terms.margin_seconds, self.terms.longest_grace_seconds
        ending_soon = [member for member in ending if now - margin_s <= member.ends_at <= now + grace_s]
        changes += [member.ends_at + margin_s for member in ending_soon]
        # A pod's owner can delete it with a grace of years. Until its end is near, it counts as a pod that stays.
        changes += [member.ends_at - grace_s for member in ending if member.ends_at > now + grace_s]

        # 2. The workloads that may be preempted, each with the priority that counts. A workload that another preemption
        #    names already is left out. It is not in ``ending_soon`` either: that placement may still be revoked.
        preemptable: list[tuple[Workload, int]] = []
        preempted_uids = self.to_end()
        highest_of: dict[str, int | None] = {}  # by namespace: the highest priority that its tenant may use
        begun_before = now - self.terms.min_run_minutes * MINUTE_S
        for workload in workloads:
            if preempted_uids and any(member.pod.metadata.uid in preempted_uids for member in workload.pods):
                continue
            if (namespace := workload.key[0]) not in highest_of:
                highest_of[namespace] = self._tenants.highest(namespace)
            highest = highest_of[namespace]
            counted_priority = workload.priority if highest is None else min(workload.priority, highest)
            if counted_priority >= priority:
                continue
            if self.terms.unpreemptable_tenants and not self._tenants.known(namespace):
                # The labels of the namespace are not read yet, and can make it one of an unpreemptable tenant.
                changes.append(now + UNREAD_S)
            elif workload.since > begun_before:
                changes.append(workload.since + now - begun_before)
            elif self._may_end(workload):
                # A workload that could not be ended is left alone for a while.
                if (refused_s := self._evictions.refused_for(workload.key)) > 0:
                    changes.append(now + refused_s)
                else:
                    preemptable.append((workload, counted_priority))
        # Some replace a workload that was preempted lately: they are spared for a while.
        if spared := self._spared(preemptable, now):
            changes += spared.values()
            preemptable = [pair for pair in preemptable if pair[0].key not in spared]

        # 3. The scene of all. ``whose`` names the reservations whose GPUs the waiting workload may use if it begins
        #    after the longest grace period of the workloads.
        scene = Scene(preemptable, ending_soon, now)
        scene = msgspec.structs.replace(scene, whose=self._limits.whose(wanting, scene.grace_s))
        if not (refusals := self._evictions.refusals()):
            return [scene], min(changes, default=math.inf)

        # 4. Before it, up to two scenes with the workloads that were refused least often in a row. The highest count
        #    needs none: that is the scene of all.
        counts = [refusals.get(workload.key, 0) for workload, _ in preemptable]
        levels = sorted(set(counts))
        refused_less = [
            [pair for pair, count in zip(preemptable, counts, strict=True) if count <= level]
            for level in levels[: min(2, len(levels) - 1)]
        ]
        scenes = [*(msgspec.structs.replace(scene, workloads=pairs) for pairs in refused_less), scene]
        return scenes, min(changes, default=math.inf)

    def _spared(self, workloads: Iterable[tuple[Workload, int]], now: float) -> dict[Key, float]:
        """Return which workloads are spared because they replace one that had to end, and until when.

        Each eviction spares the workload that the same owner made next. So nothing has to end again and again, and an
        owner of many pods has no more of them spared than had to end.
        """
        back_off_s = self.terms.back_off_minutes * MINUTE_S
        by_lineage = self._evicted.by_lineage(now - back_off_s)
        if not by_lineage:
            return {}
        made: dict[str, list[Workload]] = {}
        for workload, _ in workloads:
            if workload.lineage in by_lineage:
                made.setdefault(workload.lineage, []).append(workload)
        spared: dict[Key, float] = {}
        for lineage, replacing in made.items():
            replacing.sort(key=lambda workload: workload.made_at, reverse=True)
            for at in by_lineage[lineage]:
                # The API server's times have no fractions of seconds.
                while replacing and replacing[-1].made_at < int(at):
                    replacing.pop()
                if replacing:
                    spared[replacing.pop().key] = at + back_off_s
        return spared

    def _may_end(self, workload: Workload) -> bool:
        """Return whether the policies let a workload end at some time, and there is a way."""
        terms = self.terms
        if workload.grace_s > terms.longest_grace_seconds:
            return False
        if terms.unpreemptable_tenants and self._tenants.of(workload.key[0]) in terms.unpreemptable_tenants:
            return False
        classes = terms.unpreemptable_classes
        if classes and any(one.pod.spec.priority_class_name in classes for one in workload.pods):
            return False
        return self._evictions.may_end(workload)

    def to_end(self) -> frozenset[str]:
        """Return the uids of pods that are preempted for somebody already."""
        return frozenset(uid for preempts in self._plans() for uid in preempts.uids)

    def _plans(self) -> Iterator[Preempts]:
        """Give what claims say of those who have to end for them, also claims that are about to be created."""
        accounts = self._picture.accounts
        promised = (claim.preempts for claim in accounts.preempting() if claim.devices is None)
        for preempts in (*promised, *(place.preempts for place in accounts.placements())):
            if preempts is not None:
                yield preempts

    def _planned(self) -> set[Key]:
        """Return the uids of pods that have to end for another pod and were not told yet.

        If one is refused before any other has begun to end, the plan is given up. Afterwards it is asked again and
        again, and may end at any moment.
        """
        planned: set[Key] = set()
        for parts in self._by_plan(self._plans()):
            pods = {pod.metadata.uid: pod for preempts in parts for pod in self._untold_pods(preempts)}
            begun = len(pods) < len({uid for preempts in parts for uid in preempts.uids})
            planned |= {
                workload
                for workload in self._workloads(pods.values())
                if begun or not self._evictions.refused_for(workload)
            }
        return planned

    @staticmethod
    def _by_plan(notes: Iterable[Preempts]) -> list[list[Preempts]]:
        """Return what claims say by the plan that it is a part of: of a gang each claim has its own."""
        plans: dict[tuple[int, str], list[Preempts]] = {}
        for preempts in notes:
            plans.setdefault((preempts.at, preempts.why), []).append(preempts)
        return list(plans.values())

    def _untold_pods(self, preempts: Preempts) -> list[Pod]:
        living = conflicts.living(self._picture, preempts)
        return [pod for pod in living if pod.metadata.deletion_timestamp is None]

    def _workloads(self, pods: Iterable[Pod]) -> set[Key]:
        keys = ((pod.metadata.namespace, pod.metadata.name) for pod in pods)
        return {key if (of := self._picture.gangs.of(key)) is None else of.gang for key in keys}

    def _remember(self, now: float) -> None:
        """Forget what is over; a leader that begins learns from the claims whom its predecessors have had ended."""
        if not self._is_restored:
            self._is_restored = True
            for parts in self._by_plan(
                claim.preempts for claim in self._picture.accounts.preempting() if claim.preempts is not None
            ):
                self._evicted.restore(self._told(parts))
        self._evicted.keep(now - max(self.terms.back_off_minutes, 1.0) * MINUTE_S, now)

    def _told(self, parts: Sequence[Preempts]) -> list[Evicted]:
        """Return the evictions of a plan by its claims, without those that are known already."""
        victims = {victim.uid: victim for preempts in parts for victim in preempts.victims}
        living = [pod for preempts in parts for pod in conflicts.living(self._picture, preempts)]
        untold = [pod for pod in living if pod.metadata.deletion_timestamp is None]
        lineages = self._lineages(parts)
        # The claims also name pods that had been told to end before, for others.
        known = self._evicted.known(victims, since=parts[0].at)
        missing = len(lineages) - len(self._workloads(untold)) - len(known)
        # A pod that ends still says when it was told to; of those that are gone only the plan is known.
        told = (end - pod.grace_s for pod in living if (end := seconds(pod.metadata.deletion_timestamp)))
        at = max([float(parts[0].at), *told])
        uids = sorted(victims.keys() - {pod.metadata.uid for pod in untold} - self._evicted.known(victims))
        return [Evicted(at, uid, lineage) for uid, lineage in zip(uids[: max(missing, 0)], lineages, strict=False)]

    @staticmethod
    def _lineages(parts: Iterable[Preempts]) -> list[str]:
        """Return the lineages of a plan's victims by its claims, one for each workload that ends.

        Earlier releases wrote the lineage of a gang on each claim whose node has a pod of the gang. The first claim of
        a gang names more pods than the others, so the longest are read first. Pods that are named already add nothing.
        """
        lineages: list[str] = []
        seen: set[str] = set()
        for preempts in sorted(parts, key=lambda part: (len(part.victims), len(part.spare)), reverse=True):
            lineages += preempts.spare[: len(preempts.uids - seen)]
            seen |= preempts.uids
        return lineages
