"""What must hold whenever somebody is ended for being idle, and that who stays idle is ended in the end."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from typing import Final

from dradriver.api.base import names
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Key, Object, key_of
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.jobs import JOBS
from tests.fakes.storeclient import Call
from tests.simulator import sharing
from tests.simulator.idling import FRESH_S, PERIOD_S, WARN_S, WORD, Agents, Reading
from tests.simulator.replicas import Replicas
from tests.simulator.server import EPOCH
from tests.simulator.state import State
from tests.simulator.world import World

LOOKED_S: Final = 5.0  # from the last question about a claim to the request that ends its pod
ROUND_S: Final = 1.0  # times are written in whole seconds
LAG_S: Final = FRESH_S + PERIOD_S + 3.0
ENDS_S: Final = 25.0  # beyond the warning: looks, late events, agents that have to be heard
SAYS_S: Final = 2 * WARN_S + 10.0  # a warning that came to nothing stands on its pod until its time is over
Why = str


class IdleRules:
    """Looks at every pod that a controller has evicted for being idle, and every Job that one has suspended for it.

    * Nobody is ended where the cluster ends nobody, or who does not ask for it.
    * Who is ended was warned long enough before, and was idle for as long as it asked, as was said just then.
    * A pod of a gang or a Job ends with all others that live, by suspending what made them, with a note on that.
    * Nobody is told twice.
    """

    def __init__(self, world: World, agents: Agents, *, ends: bool) -> None:
        self._world, self._agents, self._ends = world, agents, ends
        self._replicas: Replicas | None = None
        self._broken: Callable[[str, str], None] = lambda name, text: None
        self._warnings: dict[str, list[tuple[float, float | None]]] = {}  # by a claim's uid: when which end was written
        self._decided: dict[tuple[int, float | None], float] = {}  # when somebody wrote an end first
        self._going: dict[str, float] = {}  # since when each pod is, by uid
        self._lagging = 0.0  # until when what a leader knows may be older than it can tell
        world.server.listeners.append(self._happened)
        world.watchers.append(self._begin)
        world.states.append(self._states)

    def _begin(self, replicas: Replicas, broken: Callable[[str, str], None]) -> None:
        self._replicas, self._broken = replicas, broken
        self._look()

    def _look(self) -> None:
        """Note where events are under way for long: of what comes late nobody can tell how old it is."""
        assert self._replicas is not None
        now = self._world.loop.now
        for replica in self._replicas.alive:
            feed = replica.feed
            if feed.away_since or feed.late_until > now or any(until > now for until in feed.frozen.values()):
                self._lagging = now + LAG_S
        self._world.loop.call_later(0.25, self._look)

    # Whoever is ended.

    def _happened(self, event: Event) -> None:
        call, old, new = self._world.server.acting, event.old, event.new
        if event.plural in (PODS.plural, RESOURCE_CLAIMS.plural) and new is not None and call is not None:
            self._decided.setdefault(
                (call.replica, _end(new)), call.at
            )  # all of a workload are warned one after the other
        if event.plural == RESOURCE_CLAIMS.plural and new is not None:
            self._warned(new, call)
        if event.plural == PODS.plural and new is not None and "deletionTimestamp" in new["metadata"]:
            self._going.setdefault(new["metadata"]["uid"], self._world.loop.now)
        if call is None or old is None:
            return
        if event.plural == PODS.plural and call.verb == "evict" and is_for_idle(call):
            if "deletionTimestamp" in old["metadata"]:
                self._again(old, call)
            elif new is None or "deletionTimestamp" in new["metadata"]:
                self._evicted(old, call)
        elif event.plural == JOBS.plural and new is not None and suspended_for_idle(old, new):
            self._suspended(new, call)

    def _warned(self, claim: Object, call: Call | None) -> None:
        end, known = _end(claim), self._warnings.setdefault(claim["metadata"]["uid"], [])
        if known and known[-1][1] == end:
            return
        known.append((self._world.loop.now if call is None or end is None else self._decided[call.replica, end], end))
        if end is not None and call is not None and not self._ends:
            self._broken("nobody is warned where nobody is ended", f"{call}")

    def _evicted(self, pod: Object, call: Call) -> None:
        name = "/".join(key_of(pod))
        if key_of(pod) in self._world.gangs:
            self._broken("no gang is ended in part", name)
        if any(owner.get("controller") and owner["kind"] == JOBS.kind for owner in _owners(pod)):
            self._broken("who would be made anew is suspended", name)
        self._due(pod, call)

    def _again(self, pod: Object, call: Call) -> None:
        """Look whether a pod that ends already is told again by somebody who could know."""
        since = self._going.get(pod["metadata"]["uid"], call.at)
        if self._lagging <= call.at and call.at - since > LOOKED_S + PERIOD_S:
            self._broken("nobody is ended twice", f"{call}: it has ended since {since:.1f}")

    def _suspended(self, job: Object, call: Call) -> None:
        if not json.loads(fit.notes_of(job)[names.IDLE]).get("why"):
            self._broken("on what rests stands why", f"{call}")
        pods = self._pods(job)
        if not pods:
            self._broken("nobody is suspended without a pod", f"{call}")
        for pod in pods:
            known = int(pod["metadata"].get("resourceVersion", 0)) <= call.seen_pods
            if known and fit.placed(pod) and key_of(pod) not in self._world.spoiled:
                self._due(pod, call)

    def _due(self, pod: Object, call: Call) -> None:
        """Look whether a pod asks to be ended, was warned, and was idle when that was asked last."""
        name, sent = "/".join(key_of(pod)), call.at
        text = fit.notes_of(pod).get(WORD)
        if not self._ends or not text or sharing.claim_of(pod) is not None:
            self._broken("nobody is ended who need not be", f"{call}: {name} says {text!r}")
            return
        claim = self._claim(pod)
        if claim is None:
            self._broken("nobody is ended without a claim", f"{call}: {name}")
            return
        uid = claim["metadata"]["uid"]
        if why := self._unwarned(uid, sent):
            self._broken("nobody is ended who was not warned", f"{call}: {name}: {why}")
        if why := self._busy(uid, sent, int(text.removesuffix("s"))):
            self._broken("nobody is ended but for what was just said", f"{call}: {name}: {why}")

    def _unwarned(self, uid: str, sent: float) -> Why:
        since: float | None = None
        ends: list[float] = []
        for at, end in self._warnings.get(uid, ()):
            if at > sent:
                break
            if end is None:
                since, ends = None, []
            else:
                since = at if since is None else since
                ends.append(end)
        if since is None:
            # It was taken back, perhaps, after it was looked at.
            return self._unwarned(uid, sent - LOOKED_S) if self._taken_back(uid, sent) else "it is not warned"
        if sent - since < WARN_S - ROUND_S:
            return f"it was warned {sent - since:.1f} s before"
        return f"its end is at {ends[-1]:.1f}" if sent < ends[-1] - ROUND_S else ""

    def _taken_back(self, uid: str, sent: float) -> bool:
        return any(sent - LOOKED_S < at <= sent and end is None for at, end in self._warnings.get(uid, ()))

    def _busy(self, uid: str, sent: float, timeout_s: int) -> Why:
        readings = self._agents.readings.get(uid, [])
        # What was said until a moment before, and whatever came since.
        lately = [one for at, one in enumerate(readings) if _until(readings, at) >= sent - LOOKED_S and one.at <= sent]
        idle = [one for one in lately if one.since is not None]
        if not idle:
            return f"it was not said to be idle at {sent:.1f}; {readings[-3:]}"
        if not any(one.since is not None and one.seen - one.since >= timeout_s for one in idle):
            return f"it was not idle for {timeout_s} s; {readings[-3:]}"
        age_s = sent - max(one.at for one in idle)
        fresh_s = LAG_S if self._lagging <= sent else self._world.loop.now
        return f"that was said {age_s:.1f} s before" if age_s > fresh_s else ""

    # What may not last.

    def _states(self) -> Iterator[State]:
        world = self._world
        if not self._ends:
            return
        jobs: set[str] = set()
        for key in world.pods:
            pod = world.pod(key)
            if pod is None:
                continue
            yield from self._says(key, pod)
            if not self._quiet(pod):
                continue
            job = next((owner for owner in _owners(pod) if owner.get("controller")), None)
            if job is None and key not in world.gangs:
                limit_s = _limit_s([pod])
                claim = self._claim(pod)
                since = None if claim is None else self._reading(claim).since
                text = f"pod {key} is idle"
                yield State("who stays idle is ended", (pod["metadata"]["uid"], since), limit_s, text, key)
            elif job is not None and job["uid"] not in jobs:
                jobs.add(job["uid"])
                yield from self._job(key[0], job)

    def _says(self, key: Key, pod: Object) -> Iterator[State]:
        """Give that a pod says something else than its claim of when it is ended."""
        claim = self._claim(pod)
        runs = pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        if claim is None or not runs or not self._served(key) or key in self._world.spoiled:
            return
        end, said = _end(claim), _end(pod)
        if end != said and sharing.claim_of(pod) is None:
            text = f"pod {key} is to be ended at {end} and says {said}"
            yield State("a pod says when it is ended", (pod["metadata"]["uid"], end, said), SAYS_S, text, key)

    def _served(self, key: Key) -> bool:
        return not any(namespace == key[0] for namespace, _ in self._world.plan.refusing)

    def _job(self, namespace: str, owner: Object) -> Iterator[State]:
        job = self._world.server.find(JOBS, owner["name"], namespace)
        if job is None or job["metadata"]["uid"] != owner["uid"] or job["spec"].get("suspend"):
            return
        pods = self._pods(job)
        refused = (namespace, JOBS.plural) in self._world.plan.unpermitted
        if refused or names.RESTARTING in (job["metadata"].get("labels") or {}) or not all(map(self._quiet, pods)):
            return
        claims = [claim for pod in pods if (claim := self._claim(pod)) is not None]
        since = tuple(self._reading(claim).since for claim in claims)
        uids = tuple(pod["metadata"]["uid"] for pod in pods)
        text = f"Job {namespace}/{owner['name']} is idle"
        for pod in pods:
            yield State("a Job that stays idle rests", (uids, since), _limit_s(pods), text, key_of(pod))

    def _quiet(self, pod: Object) -> bool:
        """Return whether a pod asks to be ended and is said to be idle, and nothing is in the way of that."""
        world, key = self._world, key_of(pod)
        if key in world.spoiled or not fit.placed(pod) or WORD not in fit.notes_of(pod):
            return False
        runs = pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        claim = self._claim(pod)
        if not runs or not self._served(key) or claim is None or sharing.claim_of(pod) is not None:
            return False
        kept = any(
            budget["metadata"]["namespace"] == key[0]
            and budget["status"]["disruptionsAllowed"] < len(world.pods)
            and _chooses(budget, pod)
            for budget in world.server.all(POD_DISRUPTION_BUDGETS)
        )
        return not kept and self._reading(claim).since is not None and self._agents.well(claim)

    def _pods(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        every = (pod for pod in self._world.server.all(PODS) if any(one["uid"] == uid for one in _owners(pod)))
        return [pod for pod in every if not fit.finished(pod) and "deletionTimestamp" not in pod["metadata"]]

    def _claim(self, pod: Object) -> Object | None:
        return self._world.server.find(RESOURCE_CLAIMS, fit.claim_names(pod)[0], pod["metadata"]["namespace"])

    def _reading(self, claim: Object) -> Reading:
        return self._agents.readings.get(claim["metadata"]["uid"], [Reading(0.0, None)])[-1]


def is_for_idle(call: Call) -> bool:
    """Return whether a pod is evicted for being idle: who is for others is evicted only as it was seen."""
    return "resourceVersion" not in (call.body or {})


def suspended_for_idle(old: Object, new: Object) -> bool:
    """Return whether a Job is suspended and noted to rest, by one write."""
    begins = bool(new["spec"].get("suspend")) and not old["spec"].get("suspend")
    note = fit.notes_of(new).get(names.IDLE)
    return begins and note is not None and note != fit.notes_of(old).get(names.IDLE)


def _until(readings: list[Reading], at: int) -> float:
    """Return until when a reading stood."""
    return readings[at + 1].at if at + 1 < len(readings) else float("inf")


def _owners(pod: Object) -> list[Object]:
    found: list[Object] = pod["metadata"].get("ownerReferences") or []
    return found


def _limit_s(pods: list[Object]) -> float:
    return max(int(fit.notes_of(pod)[WORD].removesuffix("s")) for pod in pods) + WARN_S + ENDS_S


def _chooses(budget: Object, pod: Object) -> bool:
    labels = pod["metadata"].get("labels") or {}
    wanted = budget["spec"]["selector"].get("matchLabels", {})
    return all(labels.get(name) == value for name, value in wanted.items())


def _end(obj: Object) -> float | None:
    """Return when a pod is to be ended, as it or its claim says, in the story's seconds."""
    text = fit.notes_of(obj).get(names.IDLE_END)
    return None if text is None else (datetime.datetime.fromisoformat(text) - EPOCH).total_seconds()
