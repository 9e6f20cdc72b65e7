"""Idle GPUs in stories: agents that say of claims that they do nothing, in time, late, wrongly or never."""

from __future__ import annotations

import contextlib
import datetime
import math
import random
from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

import msgspec

from dradriver.api.base import names
from dradriver.api.claims import idleness
from dradriver.controller.features import idle_pods, idle_step
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Key, Object, key_of
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.devices import results
from tests.fakes.control_plane.jobs import JOBS, Jobs
from tests.simulator import cast
from tests.simulator.replicas import Replicas
from tests.simulator.server import EPOCH
from tests.simulator.world import Node, World

WARN_S: Final = 15.0  # ten minutes
FRESH_S: Final = 5.0  # two and a half
PERIOD_S: Final = 1.0  # half a minute
IDLE_S: Final = 4.0  # without work, after which an agent calls it idle: five minutes
AGAIN_S: Final = 1.5  # after which an agent says so anew while it is asked: a minute
LOOK_S: Final = 0.5  # between two looks of an agent: 20 seconds
TIMEOUTS_S: Final = (1, 5, 15, 15, 20, 30)
WORD: Final = names.PREFIX + "idle-timeout"
HALF: Final = msgspec.Raw(b'{"idleSince":"\\ud800","idleSeen":"2026-01-01T00:00:00Z"}')


@contextlib.contextmanager
def scaled() -> Iterator[None]:
    """Let minutes pass in seconds for idle pods, for the length of the block."""
    with (
        patch.object(idle_step, "WARN_S", WARN_S),
        patch.object(idle_step, "FRESH_S", FRESH_S),
        patch.object(idle_pods, "PERIOD_S", PERIOD_S),
        patch.object(idle_pods, "LOOKED_S", PERIOD_S),
    ):
        yield


class Reading(msgspec.Struct, frozen=True):
    """What a claim's status says from a moment on: since when it is idle, and until when that was seen; None for none.

    The times are the agent's own, in seconds since the story began; ``at`` is the story's.
    """

    at: float
    since: float | None
    seen: float = 0.0


class _Life(msgspec.Struct):
    """What is true of a claim's GPUs. ``quiet`` is since when they do nothing, ``until`` when that changes."""

    quiet: float | None
    until: float
    told_at: float = -1.0
    garbled_until: float = -1.0


class Agents:
    """The agents of all nodes, and the work on their GPUs.

    Attributes:
        readings: What each claim's status has said, by uid, the oldest first.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        self.readings: dict[str, list[Reading]] = {}
        self._world, self._rng = world, rng
        self._lives: dict[str, _Life] = {}
        self._silent: dict[str, float] = {}  # until when, by node
        self._since: dict[str, float] = {}  # since when each runs
        self._skew: dict[str, float] = {}

    def begin(self) -> None:
        """Work until the story ends; what goes wrong with them ends with the faults."""
        world, rng, until = self._world, self._rng, self._world.plan.until
        for _ in range(rng.choice((0, 1, 2, 4))):
            world.loop.call_at(rng.uniform(0, until), rng.choice((self._fall_silent, self._restart, self._restart)))
        for _ in range(rng.choice((0, 0, 1, 3, 6))):
            world.loop.call_at(rng.uniform(0, until), rng.choice((self._garble, self._clear)))
        if rng.random() < 0.2:
            self._skew[rng.choice(sorted(world.nodes))] = rng.choice((-3600.0, -20.0, 20.0, 3600.0))
        world.loop.call_at(0.0, self._look)

    def well(self, claim: Object) -> bool:
        """Return whether a claim's agent is there, and its clock and what it writes are right."""
        node, now = _node(claim), self._world.loop.now
        life = self._lives.get(claim["metadata"]["uid"])
        garbled = life is not None and life.garbled_until > now
        return not garbled and self._silent.get(node, 0.0) <= now and not self._skew.get(node)

    # What goes wrong.

    def _fall_silent(self) -> None:
        node = self._rng.choice(sorted(self._world.nodes))
        self._silent[node] = self._world.loop.now + self._rng.uniform(1, 40)
        self._world.trace("the agent of %s is silent until %.1f", node, self._silent[node])

    def _restart(self) -> None:
        """An agent knows of no idleness from before its start."""
        node = self._rng.choice(sorted(self._world.nodes))
        self._world.trace("the agent of %s starts anew", node)
        self._since[node] = self._world.loop.now

    def _garble(self) -> None:
        if self._lives:
            uid = self._rng.choice(sorted(self._lives))
            self._lives[uid].garbled_until = self._world.loop.now + self._rng.uniform(1, 10)
            self._world.trace("what is said of claim %s is nonsense for a while", uid)

    def _clear(self) -> None:
        """Somebody takes all away that stands on a claim's status of its devices."""
        said = [claim for claim in self._world.server.all(RESOURCE_CLAIMS) if _said(claim)]
        if said:
            claim = self._rng.choice(said)
            self._world.trace("the devices of claim %s are cleared", claim["metadata"]["name"])
            self._write(claim, None, Reading(self._world.loop.now, None))

    # What they do.

    def _look(self) -> None:
        pods = self._world.server.all(PODS)
        running = {pod["metadata"]["uid"] for pod in pods if pod.get("status", {}).get("phase") == "Running"}
        for claim in self._world.server.all(RESOURCE_CLAIMS):
            users = {user["uid"] for user in claim.get("status", {}).get("reservedFor") or ()}
            if _given(claim) and not users.isdisjoint(running):
                self._look_at(claim)
        self._world.loop.call_later(LOOK_S, self._look)

    def _look_at(self, claim: Object) -> None:
        now, rng, uid, node = self._world.loop.now, self._rng, claim["metadata"]["uid"], _node(claim)
        life = self._lives.get(uid)
        if life is None:
            idle = rng.random() < 0.75
            life = self._lives[uid] = _Life(now if idle else None, now + rng.choice((3, 10, 40, 1000)))
        elif now >= life.until:
            life.quiet = now if life.quiet is None else None
            calm = now > self._world.plan.until
            life.until = now + (rng.choice((3, 10, 40, 1000)) if life.quiet is not None else rng.choice((1, 3, 15)))
            if calm and life.quiet is not None:
                life.until = now + 1000
        if self._silent.get(node, 0.0) > now:
            return
        since = None if life.quiet is None else max(life.quiet, self._since.get(node, 0.0))
        idle = since is not None and now - since >= IDLE_S
        said = bool(_said(claim))
        if life.garbled_until > now:
            self._nonsense(claim)
        elif idle and since is not None:
            asked = names.IDLE_END in fit.notes_of(claim)
            last = self.readings.get(uid, [Reading(0.0, None)])[-1].since
            if not said or (asked and now - life.told_at >= AGAIN_S) or last is None:
                skew = self._skew.get(node, 0.0)
                read = Reading(now, float(math.floor(since + skew)), float(math.floor(now + skew)))
                life.told_at = now
                self._write(claim, idleness.told(_moment(since + skew), now=_moment(now + skew)), read)
        elif said:
            self._write(claim, {}, Reading(now, None))

    def _nonsense(self, claim: Object) -> None:
        now, rng = self._world.loop.now, self._rng
        good = idleness.told(_moment(0.0), now=_moment(now))
        data: Any = rng.choice(
            (
                HALF,
                {"idleSince": "long ago", "idleSeen": good["idleSeen"]},
                {"idleSince": good["idleSince"]},
                {"idleSince": 7, "idleSeen": []},
                {"idleSince": good["idleSeen"], "idleSeen": good["idleSince"]},
                [good],
                good | {"x": "y" * 20_000},
            )
        )
        if _given(claim)[1:] and rng.random() < 0.5:
            self._write(claim, good, Reading(now, None), only=1)
        else:
            self._write(claim, data, Reading(now, None))

    def _write(self, claim: Object, data: Any, means: Reading, *, only: int | None = None) -> None:
        """Write what is said of all devices of a claim, or of some alone; None takes all away."""
        kept = ("driver", "pool", "device", "shareID")
        told = [{key: one[key] for key in kept if key in one} | {"data": data} for one in _given(claim)[:only]]
        self.readings.setdefault(claim["metadata"]["uid"], []).append(means)

        def change(claim: Object) -> None:
            others = [one for one in claim["status"].get("devices") or () if one["pool"] == names.SEAT_POOL]
            claim["status"]["devices"] = others + ([] if data is None else told)

        self._world.server.edit(RESOURCE_CLAIMS, key_of(claim), change)


class Idling:
    """Pods that ask to be ended when they are idle, alone, of Jobs and sharing claims; and what befalls them."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self.ends = rng.random() < 0.9
        self.agents = Agents(world, rng)
        self._jobs: Jobs | None = None
        self._planned = False

    def begin(self, *, jobs: bool) -> None:
        """Draw nodes, pods and budgets, and what befalls whoever leads; ``jobs`` are of this campaign's own."""
        world, rng = self._world, self._rng
        world.plan.until += rng.uniform(0, 40)
        until = world.plan.until
        for _ in range(rng.randint(1, 2)):
            world.add_node(Node(world.name("i"), "rtx-a6000-x4-pairs", form=rng.choice(("whole", "whole", "shared"))))
        for _ in range(rng.randint(2, 7)):
            world.loop.call_at(rng.uniform(0, until * 0.7), world.add_pod, self._pod(world.name("nb")))
        if rng.random() < 0.3:
            namespace = rng.choice(("default", "team-a"))
            for _ in range(2):
                words = {"shared-claim": "trio", "idle-timeout": "1s"}
                world.loop.call_at(
                    rng.uniform(0, until), world.add_pod, cast.pod(world.name("set"), namespace, {"main": 2}, words)
                )
        if rng.random() < 0.5:
            self._budgets()
        if jobs:
            self._begin_jobs()
        self.agents.begin()
        world.watchers.append(lambda replicas, _: self._trouble(replicas))

    def _trouble(self, replicas: Replicas) -> None:
        replicas.ends_idle = self.ends
        until = self._world.plan.until

        def kill() -> None:
            if replicas.leader is not None:
                replicas.kill(replicas.leader)

        for _ in range(self._rng.choice((0, 0, 1, 2, 3))):
            self._world.loop.call_at(self._rng.uniform(5, until), kill)

    def _words(self) -> dict[str, str]:
        return {} if self._rng.random() < 0.2 else {"idle-timeout": f"{self._rng.choice(TIMEOUTS_S)}s"}

    def _pod(self, name: str) -> Object:
        rng = self._rng
        share = {"share": "0.5"} if rng.random() < 0.15 else {}
        gpus = 1 if share else rng.choice((1, 1, 2))
        pod = cast.pod(name, rng.choice(("default", "team-a")), {"main": gpus}, self._words() | share)
        if rng.random() < 0.3:
            pod["metadata"]["labels"]["app"] = "kept"
        return pod

    def _budgets(self) -> None:
        world, rng = self._world, self._rng

        def put(allowed: int) -> None:
            for namespace in ("default", "team-a"):
                spec = {"selector": {"matchLabels": {"app": "kept"}}}
                head = {"name": "kept", "namespace": namespace}
                status = {"disruptionsAllowed": allowed}
                world.server.put(POD_DISRUPTION_BUDGETS, {"metadata": head, "spec": spec, "status": status})

        put(rng.choice((0, 0, 1)))
        world.loop.call_at(rng.uniform(10, world.plan.until), put, 100)

    # Jobs.

    def _begin_jobs(self) -> None:
        world, rng = self._world, self._rng
        world.server.serves |= {JOBS}
        self._jobs = Jobs(world.server, self._of_job, delete=world.housekeeping.delete_pod)
        world.server.listeners.append(self._happened)
        for _ in range(rng.randint(1, 2)):
            pods = rng.randint(1, 3)
            spec: Object = {
                "parallelism": pods,
                "completions": pods,
                "completionMode": "Indexed",
                "backoffLimit": 10**6,
            }
            head: Object = {"name": world.name("job"), "namespace": rng.choice(("default", "team-a"))}
            words = self._words()
            head["annotations"] = {WORD: words["idle-timeout"]} if words else {}
            world.loop.call_at(
                rng.uniform(0, world.plan.until * 0.5), world.server.put, JOBS, {"metadata": head, "spec": spec}
            )
        for _ in range(rng.choice((0, 0, 1))):
            world.loop.call_at(rng.uniform(5, world.plan.until), self._suspend)

    def _of_job(self, job: Object, name: str, index: int) -> Object:
        said = fit.notes_of(job).get(WORD)
        words = {"idle-timeout": said} if said and (index == 0 or self._rng.random() < 0.85) else {}
        pod = cast.pod(name, job["metadata"]["namespace"], {"main": 1}, words)
        self._world.comes(pod)
        return pod

    def _happened(self, event: Event) -> None:
        own = event.plural == PODS.plural and event.key[1].startswith("job-")
        if not own and event.plural != JOBS.plural:
            return
        old, new = event.old, event.new
        if event.plural == JOBS.plural and old is not None and new is not None:
            suspended = new["spec"].get("suspend") and not old["spec"].get("suspend")
            if suspended and self._rng.random() < 0.6:
                self._world.loop.call_later(self._rng.uniform(1, 20), self._set, event.key, False)
        if not self._planned:
            self._planned = True
            self._world.loop.call_later(self._rng.choice((0.02, 0.1, 0.1, 1.0)), self._act)

    def _act(self) -> None:
        self._planned = False
        assert self._jobs is not None, "only these are listened to"
        self._jobs.act()

    def _suspend(self) -> None:
        running = [job for job in self._world.server.all(JOBS) if not job["spec"].get("suspend")]
        if running:
            self._set(key_of(self._rng.choice(running)), True)

    def _set(self, key: Key, suspend: bool) -> None:
        self._world.trace("somebody %s Job %s/%s", "suspends" if suspend else "resumes", *key)
        self._world.server.edit(JOBS, key, lambda job: job["spec"].update(suspend=suspend))


def _given(claim: Object) -> list[Object]:
    """Return the GPUs, or parts of them, that a claim was given."""
    return [one for one in results(claim) if one["driver"] == names.DRIVER and one["pool"] != names.SEAT_POOL]


def _said(claim: Object) -> list[Object]:
    """Return what is said of these on the claim."""
    return [one for one in claim.get("status", {}).get("devices") or () if one["pool"] != names.SEAT_POOL]


def _node(claim: Object) -> str:
    given = _given(claim)
    return str(given[0]["pool"]) if given else ""


def _moment(seconds: float) -> datetime.datetime:
    return EPOCH + datetime.timedelta(seconds=seconds)
