"""Who may have to end for others: by the policies, by who had to lately, and by what there is to end them with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.claims.preemption_note import Preempts
from dradriver.api.policies.tenant_policies import Preemption as Terms
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.derived.workloads import Workload
from dradriver.controller.owners.evictions import Evictions
from dradriver.controller.placing.preemption_search import Scene
from dradriver.controller.placing.running_workloads import RunningWorkloads
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
    ) -> None:
        """Make one of whose workloads nobody may have to end.

        Args:
            picture: The cluster.
            tenants: Whose a namespace is, and what its priorities count.
            evictions: Says whether there is a way to end a workload.
            limits: Says whose reserved GPUs a workload may have.
        """
        self.terms = Terms()
        self._picture, self._tenants, self._evictions, self._limits = picture, tenants, evictions, limits
        self._running = RunningWorkloads(picture)
        self._before: list[tuple[float, int]] = []  # when how many workloads were told to end by those who led before
        self._spared: dict[str, float] = {}  # what made those that had to end, and until when that is spared
        self._restored = False

    def begin(self) -> None:
        """Count as preemptable what was evicted by former leaders, too: their claims say whom they had ended."""
        self._before.clear()
        self._restored = False

    def left(self, now: float) -> int:
        """Return how many workloads may be preempted still, of those that may within a minute.

        Those count that were told to, and those of plans under way. A plan that comes to nothing costs nobody anything.
        """
        self._remember(now)
        ended = [workload for workload, _ in self._evictions.ended()]
        planned = self._planned().difference(ended)
        return self.terms.units_per_minute - len(ended) - len(planned) - sum(count for _, count in self._before)

    def counted_until(self, now: float) -> float | None:
        """Return when the last preempted workloads count no more, seconds since the epoch; None if none do."""
        times = [at + MINUTE_S for at, _ in self._before]
        times += [now + MINUTE_S - ago_s for _, ago_s in self._evictions.ended()]
        if self._planned():
            times.append(now + MINUTE_S)
        return max(times, default=None)

    def scene(self, wanting: PendingWorkload, now: float) -> tuple[Scene, float]:
        """Return which workloads are preemptable for another, which end already, and when that changes by itself."""
        priority = -wanting.order[0]
        workloads, ending = self._running.all()
        to_end = self.to_end()
        margin_s, grace_s = self.terms.margin_seconds, self.terms.longest_grace_seconds
        ends = [one for one in ending if now - margin_s <= one.ends_at <= now + grace_s]
        changes = [one.ends_at + margin_s for one in ends]
        # A pod's owner can delete it with a grace of years: until its end is near others go on as if it stayed.
        changes += [one.ends_at - grace_s for one in ending if one.ends_at > now + grace_s]
        may: list[tuple[Workload, int]] = []
        caps: dict[str, int | None] = {}
        since = now - self.terms.min_run_minutes * MINUTE_S
        for workload in workloads:
            if to_end and any(one.pod.metadata.uid in to_end for one in workload.pods):
                continue  # for somebody else, whose promise may come to nothing yet
            if (space := workload.key[0]) not in caps:
                caps[space] = self._tenants.highest(space)
            cap = caps[space]
            counts = workload.priority if cap is None else min(workload.priority, cap)
            if counts >= priority:
                continue
            if self.terms.unpreemptable_tenants and not self._tenants.known(space):
                changes.append(now + UNREAD_S)  # it may be of one of these: nobody has read its labels yet
            elif workload.since > since:
                changes.append(workload.since + now - since)
            elif self._ends(workload):
                at = max(self._spared.get(workload.owner, 0.0), now + self._evictions.refused_for(workload.key))
                if at > now:
                    changes.append(at)
                else:
                    may.append((workload, counts))
        scene = Scene(may, ends, now)
        scene = msgspec.structs.replace(scene, whose=self._limits.whose(wanting, scene.grace_s))
        return scene, min(changes, default=math.inf)

    def _ends(self, workload: Workload) -> bool:
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
        plans: dict[tuple[int, str], list[Preempts]] = {}  # of a gang each claim has its part of the same plan
        for preempts in self._plans():
            plans.setdefault((preempts.at, preempts.why), []).append(preempts)
        planned: set[Key] = set()
        for parts in plans.values():
            pods = {pod.metadata.uid: pod for preempts in parts for pod in self._untold_pods(preempts)}
            begun = len(pods) < len({uid for preempts in parts for uid in preempts.uids})
            planned |= {
                workload
                for workload in self._workloads(pods.values())
                if begun or not self._evictions.refused_for(workload)
            }
        return planned

    def _untold(self, preempts: Preempts) -> set[Key]:
        return self._workloads(self._untold_pods(preempts))

    def _untold_pods(self, preempts: Preempts) -> list[Pod]:
        living = conflicts.living(self._picture, preempts)
        return [pod for pod in living if pod.metadata.deletion_timestamp is None]

    def _workloads(self, pods: Iterable[Pod]) -> set[Key]:
        keys = ((pod.metadata.namespace, pod.metadata.name) for pod in pods)
        return {key if (of := self._picture.gangs.of(key)) is None else of.gang for key in keys}

    def _remember(self, now: float) -> None:
        """Forget what is over; a leader that begins learns from the claims whom its predecessors have had ended."""
        if not self._restored:
            self._restored = True
            noted = (claim.preempts for claim in self._picture.accounts.preempting())
            plans = {(one.at, one.spare): len(self._untold(one)) for one in noted if one is not None}
            for (at, spare), untold in sorted(plans.items()):
                self._before.append((float(at), max(len(spare) - untold, 0)))
                self.spare(at, spare)
        self._before = [(at, count) for at, count in self._before if now < at + MINUTE_S]
        self._spared = {owner: until for owner, until in self._spared.items() if now < until}

    def spare(self, at: float, owners: Iterable[str]) -> None:
        """Note that pods of these owners were preempted at a time, so that others are preferred for a while."""
        self._spared |= dict.fromkeys(owners, at + self.terms.back_off_minutes * MINUTE_S)

    def spare_no_more(self, owners: Iterable[str]) -> None:
        """Note that pods of these owners were not preempted after all."""
        for owner in owners:
            self._spared.pop(owner, None)
