"""What must never be, found in what the API server shows of pods and claims, and in nothing else."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Final

from tests.bench.gangs.seen import Claim, Pod, Seen, now

DEADLINE_S: Final = 10.0  # from the first of a gang's pods that is bound to the last
KEPT_S: Final = 30.0  # that GPUs may be held for a pod that is gone


class Clock:
    """Seconds during which there was a leader: nobody else keeps a deadline."""

    def __init__(self) -> None:
        """There is none yet."""
        self._spent = 0.0
        self._since: float | None = None

    def now(self) -> float:
        """Return the seconds so far."""
        return self._spent + (now() - self._since if self._since is not None else 0.0)

    def stop(self) -> None:
        """Say that there is no leader."""
        self._spent, self._since = self.now(), None

    def go_on(self) -> None:
        """Say that there is one again."""
        if self._since is None:
            self._since = now()


class Verdicts:
    """What is wrong, by kind, each with what it is about.

    Attributes:
        wrong: What is.
        bound_s: Of each gang that was bound as a whole the seconds from its first to its last pod, by any clock.
        whole: The gangs all of whose pods were bound at a time.
    """

    def __init__(self, seen: Seen, clock: Clock, sizes: Mapping[str, int]) -> None:
        """``sizes`` are the gangs' by their names."""
        self._seen, self._clock, self._sizes = seen, clock, sizes
        self.wrong: dict[str, list[str]] = {"partly bound": [], "GPUs lost": [], "GPUs given twice": []}
        self.bound_s: dict[str, float] = {}
        self.whole: set[str] = set()
        self._partly: dict[str, tuple[float, float]] = {}  # since when, by the leader's clock and by any
        self._ending: set[str] = set()
        self._orphans: dict[str, float] = {}
        self._holders: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
        self._held: dict[str, list[tuple[str, str]]] = {}
        seen.changed.append(self._changed)

    def ends(self, gang: str) -> None:
        """Say that a gang's pods are about to end: they do so one after another."""
        self._ending.add(gang)
        self._partly.pop(gang, None)

    def look(self) -> None:
        """See whose time is over."""
        leading = self._clock.now()
        for gang, (since, _) in list(self._partly.items()):
            if leading > since + DEADLINE_S:
                bound = sum(pod.bound for pod in self._pods(gang))
                self._say("partly bound", gang, f"{bound} of {self._sizes[gang]}")
        alive = {pod.metadata.uid for pod in self._seen.pods.values() if not pod.finished}
        orphans = {
            name: claim
            for name, claim in self._seen.claims.items()
            if claim.gpus and not alive.intersection(claim.users)
        }
        self._orphans = {name: self._orphans.get(name, leading) for name in orphans}
        for name, since in self._orphans.items():
            if leading > since + KEPT_S:
                self._say("GPUs lost", name, f"{len(orphans[name].gpus)} GPUs of a pod that is gone")

    def nothing_left(self) -> None:
        """Say what is wrong where claims are left once all pods are gone."""
        for name, claim in self._seen.claims.items():
            self._say("GPUs lost", name, f"{len(claim.gpus)} GPUs when no pod was left")

    def figures(self) -> dict[str, Any]:
        """Return how many are wrong, by kind."""
        return {kind: len(which) for kind, which in self.wrong.items()}

    def _pods(self, gang: str) -> list[Pod]:
        pods = (self._seen.pods.get(f"{gang}-{number}") for number in range(self._sizes[gang]))
        return [pod for pod in pods if pod is not None and not pod.finished]

    def _changed(self, thing: Pod | Claim, there: bool) -> None:
        if isinstance(thing, Claim):
            self._claim_changed(thing, there)
        elif (gang := thing.gang) in self._sizes and gang not in self._ending and thing.bound:
            bound, size = sum(pod.bound for pod in self._pods(gang)), self._sizes[gang]
            if bound == size:
                _, since = self._partly.pop(gang, (0.0, now()))
                self.bound_s.setdefault(gang, now() - since)
                self.whole.add(gang)
            elif bound:
                self._partly.setdefault(gang, (self._clock.now(), now()))

    def _claim_changed(self, claim: Claim, there: bool) -> None:
        name = claim.metadata.name
        for gpu in self._held.pop(name, ()):
            self._holders[gpu].discard(name)
        if there and claim.gpus:
            self._held[name] = claim.gpus
            for gpu in claim.gpus:
                holders = self._holders[gpu]
                holders.add(name)
                if len(holders) > 1:
                    self._say("GPUs given twice", "/".join(gpu), ", ".join(sorted(holders)))

    def _say(self, kind: str, which: str, how: str) -> None:
        if not any(text.startswith(f"{which}:") for text in self.wrong[kind]):
            self.wrong[kind].append(f"{which}: {how}")
