"""Who may have to end for others: by the policies, by who had to lately, and by what there is to end them with."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from dradriver.api.policies.tenants import Preemption as Terms
from dradriver.cluster.picture import Picture
from dradriver.cluster.running_units import RunningUnit, RunningUnits
from dradriver.controller.evictions import Evictions
from dradriver.controller.preemption_plan import Scene
from dradriver.queue.tenants import MINUTE_S, Tenants
from dradriver.queue.units import Unit

UNREAD_S: Final = 30.0  # after which it is looked again whether the labels of a unit's namespace are read


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
        whose: Callable[[Unit, float], tuple[str, ...]],
    ) -> None:
        """Make one of whose units nobody may have to end.

        Args:
            picture: The cluster.
            tenants: Whose a namespace is, and what its priorities count.
            evictions: Says whether there is a way to end a unit.
            whose: Says whose reserved GPUs a unit may have that begins so many seconds later.
        """
        self.terms = Terms()
        self._picture, self._tenants, self._evictions, self._whose = picture, tenants, evictions, whose
        self._running = RunningUnits(picture)
        self._ended: collections.deque[tuple[float, int]] = collections.deque()  # when how many units had to end
        self._spared: dict[str, float] = {}  # what made those that had to end, and until when that is spared
        self._restored = False

    def begin(self) -> None:
        """Take in that this process leads from now on: whom others have had ended the claims tell."""
        self._ended.clear()
        self._restored = False

    def left(self, now: float) -> int:
        """Return how many units may have to end still, of those that may within a minute."""
        self._remember(now)
        return self.terms.units_per_minute - sum(count for _, count in self._ended)

    def counted_until(self) -> float | None:
        """Return when those count no more that had to end last, seconds since the epoch; None where none had to."""
        return self._ended[-1][0] + MINUTE_S if self._ended else None

    def scene(self, wanting: Unit, now: float) -> tuple[Scene, float]:
        """Return who may have to end for somebody, and who ends already; and when that changes without any event."""
        priority = -wanting.order[0]
        units, ending = self._running.all()
        to_end = self.to_end()
        margin_s, grace_s = self.terms.margin_seconds, self.terms.longest_grace_seconds
        ends = [one for one in ending if now - margin_s <= one.ends_at() <= now + grace_s]
        changes = [one.ends_at() + margin_s for one in ends]
        # A pod's owner can delete it with a grace of years: until its end is near others go on as if it stayed.
        changes += [one.ends_at() - grace_s for one in ending if one.ends_at() > now + grace_s]
        may: list[tuple[RunningUnit, int]] = []
        caps: dict[str, int | None] = {}
        since = now - self.terms.min_run_minutes * MINUTE_S
        for unit in units:
            if to_end and any(one.pod.metadata.uid in to_end for one in unit.pods):
                continue  # for somebody else, whose promise may come to nothing yet
            if (space := unit.key[0]) not in caps:
                caps[space] = self._tenants.highest(space)
            cap = caps[space]
            counts = unit.priority if cap is None else min(unit.priority, cap)
            if counts >= priority:
                continue
            if self.terms.unpreemptable_tenants and not self._tenants.known(space):
                changes.append(now + UNREAD_S)  # it may be of one of these: nobody has read its labels yet
            elif unit.since > since:
                changes.append(unit.since + now - since)
            elif self._ends(unit):
                at = max(self._spared.get(unit.owner, 0.0), now + self._evictions.refused_for(unit.key))
                if at > now:
                    changes.append(at)
                else:
                    may.append((unit, counts))
        scene = Scene(may, ends, now)
        scene = msgspec.structs.replace(scene, whose=self._whose(wanting, scene.grace_s))
        return scene, min(changes, default=math.inf)

    def _ends(self, unit: RunningUnit) -> bool:
        """Return whether the policies let a unit end at some time, and there is a way."""
        terms = self.terms
        if unit.grace_s > terms.longest_grace_seconds:
            return False
        if terms.unpreemptable_tenants and self._tenants.of(unit.key[0]) in terms.unpreemptable_tenants:
            return False
        classes = terms.unpreemptable_classes
        if classes and any(one.pod.spec.priority_class_name in classes for one in unit.pods):
            return False
        return self._evictions.may_end(unit)

    def to_end(self) -> frozenset[str]:
        """Return the uids of pods that have to end for somebody already."""
        accounts = self._picture.accounts
        promised = (claim.preempts for claim in accounts.preempting() if claim.devices is None)
        every = (*promised, *(place.preempts for place in accounts.placements()))
        return frozenset(uid for one in every if one is not None for uid in one.uids)

    def _remember(self, now: float) -> None:
        """Forget what is over; a leader that begins learns from the claims whom its predecessors have had ended."""
        if not self._restored:
            self._restored = True
            plans = {
                (one.preempts.at, one.preempts.spare) for one in self._picture.accounts.preempting() if one.preempts
            }
            for at, spare in sorted(plans):
                self.count(float(at), spare)
        while self._ended and self._ended[0][0] <= now - MINUTE_S:
            self._ended.popleft()
        self._spared = {owner: until for owner, until in self._spared.items() if now < until}

    def count(self, at: float, owners: Sequence[str]) -> None:
        """Take in that units had to end at a time, by what made each; those are spared from now on."""
        self._ended.append((at, len(owners)))
        self.spare(at, owners)

    def spare(self, at: float, owners: Iterable[str]) -> None:
        """Take in that what these have made had to end at a time."""
        self._spared |= dict.fromkeys(owners, at + self.terms.back_off_minutes * MINUTE_S)

    def spare_no_more(self, owners: Iterable[str]) -> None:
        """Take in that what these have made had not to end after all."""
        for owner in owners:
            self._spared.pop(owner, None)
