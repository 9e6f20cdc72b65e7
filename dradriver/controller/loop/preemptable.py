"""Says which running workloads preemption may end, by the policies, recent evictions, and how they can be ended.

A *victim* is a workload that preemption ends. A *plan* is one preemption: the claims for a waiting workload, with
*notes* (annotations) that name the pods that must end first. ``Preemptions`` calls this module.
"""

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
    """The running workloads that preemption may end.

    Attributes:
        terms: The preemption rules of the policies file in force.
    """

    def __init__(
        self,
        picture: Picture,
        tenants: Tenants,
        evictions: Evictions,
        limits: Limits,
        evicted: EvictionRecord,
    ) -> None:
        """Begin with preemption off, until ``terms`` is set.

        Args:
            picture: The cluster cache.
            tenants: Give the tenant of a namespace, and the highest priority that it may use.
            evictions: Says whether there is a way to end a workload.
            limits: Says which reserved GPUs a workload may have.
            evicted: The workloads that were evicted lately, also by previous leaders.
        """
        self.terms = Terms()
        self._picture, self._tenants, self._evictions, self._limits = picture, tenants, evictions, limits
        self._running, self._evicted = RunningWorkloads(picture), evicted
        self._is_restored = False

    def begin(self) -> None:
        """Read the evictions of previous leaders from the claims when they are next needed."""
        self._is_restored = False

    def left(self, now: float) -> int:
        """Return how many more workloads may be preempted now by the limit per minute.

        Workloads that were evicted within the last minute count against this number. So do the victims of plans that
        have not begun, unless the plan is given up. ``now`` is in seconds since the epoch.
        """
        return self.terms.workloads_per_minute - len(self._counted(now))

    def room_at(self, count: int, now: float) -> float | None:
        """Return when ``count`` more workloads may be preempted, in seconds since the epoch.

        Returns None if they may be preempted now. If ``count`` exceeds the limit per minute, the time is one minute
        after the last eviction.
        """
        counted = self._counted(now)
        most = max(self.terms.workloads_per_minute - count, 0)
        return counted[-most - 1] if len(counted) > most else None

    def _counted(self, now: float) -> list[float]:
        """Return the times at which victims stop counting against the limit per minute, sorted.

        There is one time for each workload that was evicted within the last minute, or that a plan names as a victim.
        The times and ``now`` are in seconds since the epoch.
        """
        self._remember(now)
        ended = self._evictions.ended()
        planned = self._planned().difference([workload for workload, _ in ended])
        times = [at + MINUTE_S for at in self._evicted.former(now - MINUTE_S)]
        times += [now + MINUTE_S - ago_s for _, ago_s in ended]
        times += [now + MINUTE_S] * len(planned)
        return sorted(times)

    def scenes(self, wanting: PendingWorkload, now: float) -> tuple[list[Scene], float]:
        """Return which running workloads may end for ``wanting``, as scenes to try, and a time.

        A scene is a list of workloads that may end. There is one scene, unless some workloads could not be evicted
        before. Then the caller tries several scenes in this order:

        1. the workloads whose eviction was refused least often in a row;
        2. these, and the workloads with the next higher number of refusals;
        3. all workloads.

        So a workload that cannot be ended does not delay a preemption twice while there are other victims.

        The time says when the scenes change without an event; infinite for never. Like ``now`` it is in seconds since
        the epoch.
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
        """Return the workloads that are spared for a while, and until when.

        After an eviction, the next workload of the same owner is spared, so that it is not evicted again and again. An
        owner has at most as many spared workloads as it lost by evictions.

        Args:
            workloads: The workloads that could be preempted, each with its priority.
            now: The time, in seconds since the epoch, as are the returned times.
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
        """Return whether the policies allow a workload to be preempted, and its pods can end."""
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
        """Return the uids of the pods that preemptions have already chosen as victims."""
        return frozenset(uid for preempts in self._plans() for uid in preempts.uids)

    def _plans(self) -> Iterator[Preempts]:
        """Yield the notes of all preemptions whose victims may still exist.

        A note names the pods that must end for a claim. It is on a claim without allocated devices, or in a placement
        whose claim is about to be created.
        """
        accounts = self._picture.accounts
        promised = (claim.preempts for claim in accounts.preempting() if claim.devices is None)
        for preempts in (*promised, *(place.preempts for place in accounts.placements())):
            if preempts is not None:
                yield preempts

    def _planned(self) -> set[Key]:
        """Return the keys of the planned victims that may still be told to end.

        If the eviction of a victim was refused, there are two cases. If its plan has already ended another pod, the
        controller tries the eviction again, and the victim is in the result. Otherwise the controller gives up the
        plan, and the victim is left out.
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
        """Return the preemption notes of claims, grouped by plan.

        A note (an annotation) names the pods that must end before its claim gets its GPUs. The plan of a gang has one
        note for each claim.
        """
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
        """Read the evictions of previous leaders once, and forget evictions that are too old.

        ``now`` is in seconds since the epoch.
        """
        if not self._is_restored:
            self._is_restored = True
            for parts in self._by_plan(
                claim.preempts for claim in self._picture.accounts.preempting() if claim.preempts is not None
            ):
                self._evicted.restore(self._told(parts))
        self._evicted.keep(now - max(self.terms.back_off_minutes, 1.0) * MINUTE_S, now)

    def _told(self, parts: Sequence[Preempts]) -> list[Evicted]:
        """Return a previous leader's evictions for one plan that are not recorded yet.

        ``parts`` are the notes (annotations) of the plan's claims; each names pods that must end. A named pod that is
        gone, or is being deleted, counts as evicted.
        """
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
        """Return the lineages of a plan's victims, one for each workload that ends.

        A lineage, such as ``team-a/train``, names a gang or an owner. Workloads that replace the victim later have the
        same lineage.

        Notes of earlier releases can name the lineage of a gang several times: on each claim whose node has a pod of
        the gang. To count each gang once, the notes with the most pods are read first. A note whose pods were all read
        before adds nothing. ``parts`` are the notes of the plan.
        """
        lineages: list[str] = []
        seen: set[str] = set()
        for preempts in sorted(parts, key=lambda part: (len(part.victims), len(part.spare)), reverse=True):
            lineages += preempts.spare[: len(preempts.uids - seen)]
            seen |= preempts.uids
        return lineages
