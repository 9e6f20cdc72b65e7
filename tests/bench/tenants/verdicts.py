"""What must never be where teams share a cluster, judged by what anybody sees of pods and claims."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final

import msgspec

from tests.bench.gangs.seen import Claim, Pod, Seen, now

SLACK_S: Final = 1.0  # within which the order is to be kept


class Team(msgspec.Struct, frozen=True):
    """One of those that share the cluster.

    Attributes:
        name: Its name, and its namespace.
        weight: How much of what all want it is to have.
        cap: More GPUs than these it may not hold.
    """

    name: str
    weight: float
    cap: int


class Wish(msgspec.Struct, frozen=True):
    """What a pod was made to ask for."""

    team: str
    gpus: int
    priority: int


class Verdicts:
    """Looks at every change, and says what is wrong.

    Attributes:
        wrong: By kind, what was seen.
        waited_s: Seconds from when a pod was first seen until its claim was, by the pod's name.
        most: The most GPUs that claims of a team were given at a time, by the team's name.
    """

    def __init__(self, seen: Seen, teams: Mapping[str, Team], wishes: Mapping[str, Wish], *, ahead_s: float) -> None:
        """``wishes`` are those of all pods, by name; ``ahead_s`` is for how long what is held counts as if used."""
        self.wrong: dict[str, list[str]] = {"beyond its cap": [], "before its turn": []}
        self.waited_s: dict[str, float] = {}
        self.most = dict.fromkeys(teams, 0)
        self._teams, self._wishes = teams, wishes
        self._came: dict[str, float] = {}
        self._created: dict[str, str] = {}  # by the server's clock, in whole seconds: those of one second are equals
        self._waiting: dict[Wish, dict[str, None]] = defaultdict(dict)  # names of alike ones, the oldest first
        self._had = {name: _Had(team, ahead_s) for name, team in teams.items()}
        self._claims: dict[str, Wish] = {}
        self._given: dict[str, int] = dict.fromkeys(teams, 0)
        self._given_to: dict[str, int] = {}
        self._passed: dict[str, tuple[float, str]] = {}
        seen.changed.append(self._changed)

    def look(self) -> None:
        """See who was passed by, and still waits."""
        for name, (at, text) in list(self._passed.items()):
            if now() > at + SLACK_S:
                del self._passed[name]
                self.wrong["before its turn"].append(text)

    def _changed(self, thing: Pod | Claim, there: bool) -> None:
        if isinstance(thing, Claim):
            self._claim_changed(thing, there)
        elif (wish := self._wishes.get(thing.metadata.name)) is not None:
            if there and thing.metadata.name not in self._came:
                self._came[thing.metadata.name] = now()
                self._created[thing.metadata.name] = thing.metadata.creation_timestamp
                self._waiting[wish][thing.metadata.name] = None
            elif not there:
                self._leaves(thing.metadata.name, wish)

    def _claim_changed(self, claim: Claim, there: bool) -> None:
        name, team = claim.metadata.name, claim.metadata.namespace
        if team not in self._teams:
            return
        self._given[team] += (given := len(claim.gpus) if there else 0) - self._given_to.pop(name, 0)
        self._given_to[name] = given
        self.most[team] = max(self.most[team], self._given[team])
        if self._given[team] > self._teams[team].cap:
            text = f"{team} has {self._given[team]} GPUs of {self._teams[team].cap} with {name}"
            self.wrong["beyond its cap"].append(text)
        for pod in [each.name for each in claim.metadata.owner_references if there and name not in self._claims]:
            if (wish := self._wishes.get(pod)) is not None:
                self._placed(pod, wish)
                self._claims[name] = wish
        if not there and (held := self._claims.pop(name, None)) is not None:
            self._had[team].take(-held.gpus)

    def _placed(self, name: str, wish: Wish) -> None:
        self._leaves(name, wish)
        self.waited_s.setdefault(name, now() - self._came.get(name, now()))
        for other, names in self._waiting.items():
            oldest = next(iter(names), None)
            if oldest is not None and other.gpus == wish.gpus and self._is_before(oldest, other, name, wish):
                at, team = self._came[oldest], self._had[other.team]
                text = (
                    f"{name} ({wish.gpus} GPUs, priority {wish.priority}, share {self._had[wish.team].share():.0f}) "
                    f"before {oldest} (priority {other.priority}, share {team.share():.0f}, has waited "
                    f"{now() - at:.1f} s)"
                )
                self._passed.setdefault(oldest, (now(), text))
        self._had[wish.team].take(wish.gpus)

    def _leaves(self, name: str, wish: Wish) -> None:
        self._waiting[wish].pop(name, None)
        self._passed.pop(name, None)

    def _is_before(self, oldest: str, other: Wish, name: str, wish: Wish) -> bool:
        """Return whether one that waits was to be placed before another, throughout the last second."""
        came, room = self._came[oldest], self._teams[other.team].cap - other.gpus
        if came > now() - SLACK_S or any(held > room for _, held in self._had[other.team].lately()):
            return False
        if other.priority != wish.priority:
            return other.priority > wish.priority
        if other.team == wish.team:
            return self._created[oldest] < self._created.get(name, "")
        most = max(share for share, _ in self._had[other.team].lately())
        return most < min(share for share, _ in self._had[wish.team].lately())


class _Had:
    """What a team has had and has, now and during the last second."""

    def __init__(self, team: Team, ahead_s: float) -> None:
        self._weight, self._ahead_s = team.weight, ahead_s
        self._held, self._usage_gpu_s, self._since = 0, 0.0, now()
        self._lately: deque[tuple[float, float, int]] = deque()  # when, and its share and GPUs until then

    def take(self, gpus: int) -> None:
        """Take in that so many GPUs were given to it, negative where they are free again."""
        at = now()
        self._lately.append((at, self.share(), self._held))
        while self._lately[0][0] < at - SLACK_S:
            self._lately.popleft()
        self._usage_gpu_s += self._held * (at - self._since)
        self._since = at
        self._held += gpus

    def share(self) -> float:
        """Return what decides between teams, GPU-seconds over weight."""
        used = self._usage_gpu_s + self._held * (now() - self._since)
        return (used + self._held * self._ahead_s) / self._weight

    def lately(self) -> list[tuple[float, int]]:
        """Return its shares and GPUs of the last second, now's last."""
        begin = now() - SLACK_S
        return [(share, held) for at, share, held in self._lately if at >= begin] + [(self.share(), self._held)]
