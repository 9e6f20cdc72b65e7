"""Reservations in a story: small pods with and without an end pass large ones by, and what is reserved is watched."""

from __future__ import annotations

import datetime
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from dradriver.api.claims import reservation_config_map as stored
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue, Reservation
from dradriver.kube.resources import CONFIG_MAPS, PODS, RESOURCE_CLAIMS
from dradriver.queue import reservation_rules
from dradriver.queue.reservation_access import key_of
from tests.fakes.apistore import Event, Key, Object
from tests.fakes.control_plane import fit
from tests.simulator import cast
from tests.simulator.replicas import Replica, Replicas
from tests.simulator.state import State
from tests.simulator.taking import Gpu, asked
from tests.simulator.world import Node, World

POLICIES: Final = Policies(queue=Queue(reservation=Reservation(after_minutes=0.1, idle_minutes=0.15, short_minutes=2)))
NAMESPACE: Final = "gpu-topology"
SAMPLE_S: Final = 0.25
UNDER_WAY_S: Final = 45.0  # from a decision to the claim, where writes hang
LATE_S: Final = 1.5  # of a look, and of a step
ENDS_S: Final = 30.0  # that a reservation may outlast its reason
Broken = Callable[[str, str], None]


class Reserving:
    """The campaign, and the rules that hold in it.

    * Two reservations never overlap.
    * Nobody is placed on reserved GPUs but whom they are for, who has a higher priority, or who is ended by then.
    * Reserved GPUs stand idle no longer than they may.
    * A reservation ends soon after its pod has a node, or is gone.
    * Whoever leads next goes on with what was written.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._replicas: Replicas | None = None
        self._broken: Broken = lambda name, text: None
        self._seen: dict[tuple[int, str, tuple[Gpu, ...]], deque[tuple[float, float]]] = {}
        self._idle: dict[tuple[str, tuple[Gpu, ...]], float] = {}
        self._known: set[int] = set()  # replicas that were seen to have read what is written
        self._kept: tuple[Gpu, ...] = ()

    def begin(self) -> None:
        """Draw nodes and pods up to when faults end."""
        world, rng = self._world, self._rng
        world.policies = POLICIES
        world.watchers.append(self._watch)
        world.states.append(self._states)
        world.server.listeners.append(self._happened)
        for number in range(rng.randint(1, 2)):
            world.add_node(Node(f"r{number + 1}", "rtx-a6000-x4-pairs", cpu=16))
        until = world.plan.until
        for number in range(rng.randint(4, 10)):
            ends = rng.choice((None, None, 5, 20, 60))
            pod = self._pod(f"small-{number}", rng.choice((1, 1, 2)), ends, priority=rng.choice((0, 0, 0, 100)))
            world.loop.call_at(rng.uniform(0, until + 30), world.add_pod, pod)
        for number in range(rng.randint(1, 3)):
            pod = self._pod(f"large-{number}", 4, rng.choice((None, 30)))
            world.loop.call_at(rng.uniform(0, until / 2), world.add_pod, pod)
        for _ in range(rng.randint(0, 6)):
            world.loop.call_at(rng.uniform(5, until + 60), self._end_one)

    def _pod(self, name: str, gpus: int, ends_s: int | None, **spec: int) -> Object:
        product = {"product": "NVIDIA RTX A6000"}
        ends = {} if ends_s is None else {"activeDeadlineSeconds": ends_s, "terminationGracePeriodSeconds": 0}
        return cast.pod(name, self._rng.choice(("default", "team-a")), {"main": gpus}, product, **spec, **ends)

    def _end_one(self) -> None:
        running = self._world.existing(lambda pod: bool(pod["spec"].get("nodeName")) and not fit.finished(pod))
        if running:
            self._world.finish_pod(self._rng.choice(running))

    # The kubelets.

    def _happened(self, event: Event) -> None:
        if event.plural == PODS.plural and event.new is not None:
            spec, status = event.new["spec"], event.new.get("status", {})
            if spec.get("nodeName") and "startTime" not in status:
                self._world.loop.call_later(0.0, self._start, event.key, event.new["metadata"]["uid"])
        elif event.plural == RESOURCE_CLAIMS.plural and event.old is None and event.new is not None:
            self._made(event.new)

    def _start(self, key: Key, uid: str) -> None:
        pod = self._world.pod(key)
        if pod is None or pod["metadata"]["uid"] != uid or "startTime" in pod["status"]:
            return
        now = f"{self._world.server.clock().astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
        self._world.server.edit(PODS, key, lambda pod: pod["status"].update(startTime=now))
        if (ends_s := pod["spec"].get("activeDeadlineSeconds")) is not None:
            self._world.loop.call_later(ends_s, self._exceeded, key, uid)

    def _exceeded(self, key: Key, uid: str) -> None:
        pod = self._world.pod(key)
        if pod is not None and pod["metadata"]["uid"] == uid and not fit.finished(pod):
            self._world.trace("pod %s/%s has exceeded its deadline", *key)
            self._world.server.edit(PODS, key, lambda pod: pod["status"].update(phase="Failed"))

    # What must hold.

    def _watch(self, replicas: Replicas, broken: Broken) -> None:
        self._replicas, self._broken = replicas, broken
        self._look()

    def _look(self) -> None:
        assert self._replicas is not None
        leader = self._replicas.leader
        for replica in self._replicas.alive:
            if replica.leads:
                self._look_at(replica, counts=replica is leader)
        kept = tuple(sorted({gpu for held in (self._of(leader) if leader else ()) for gpu in held.gpus}))
        if kept != self._kept:  # nobody need have a place there
            self._world.truth.keep(self._kept, -1)
            self._world.truth.keep(kept, 1)
            self._kept = kept
        self._world.loop.call_later(SAMPLE_S, self._look)

    def _states(self) -> Iterator[State]:
        """Give what may not last: reservations whose pods do not wait any more."""
        leader = None if self._replicas is None else self._replicas.leader
        for held in () if leader is None else self._of(leader):
            pod = self._world.pod(key_of(held.who))
            waits = pod is not None and pod["metadata"]["uid"] == held.who.rpartition("/")[2]
            if pod is None or not waits or pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                yield State("a reservation ends with its reason", held.who, ENDS_S, f"GPUs are reserved for {held.who}")

    def _of(self, replica: Replica) -> tuple[reservation_rules.Reservation, ...]:
        return replica.controller.features.limits.reservations.all()

    def _look_at(self, replica: Replica, *, counts: bool) -> None:
        world, every = self._world, self._of(replica)
        gpus = [gpu for held in every for gpu in held.gpus]
        if len(set(gpus)) != len(gpus):
            self._broken("reservations never overlap", f"controller {replica.number}: {every}")
        if replica.controller.features.limits.reservations.loaded and replica.number not in self._known:
            self._known.add(replica.number)
            self._goes_on(replica)
        terms = reservation_rules.Terms.of(POLICIES.queue.reservation)
        now = _now(world)
        for held in every:
            ends = self._seen.setdefault(
                (replica.number, held.who, held.gpus), deque(maxlen=int(UNDER_WAY_S / SAMPLE_S))
            )
            ends.append((world.loop.now, reservation_rules.latest_end(held, terms, now)))
            if not counts:
                continue
            inventory = replica.controller.worker.picture.inventory  # what it has not been shown it cannot count
            free = [gpu for gpu in held.gpus if gpu[1] in world.truth.listed(gpu[0]) and not inventory.holders(gpu)]
            free = [gpu for gpu in free if not world.truth.allocated().get(gpu) and not world.truth.promised().get(gpu)]
            account = held.who, held.gpus
            self._idle[account] = self._idle.get(account, 0.0) + len(free) * SAMPLE_S
            most = (terms.idle_s + LATE_S) * len(held.gpus)
            if self._idle[account] > most:
                self._broken("reserved GPUs stand idle for so long at most", f"{self._idle[account]:.0f} for {held}")
        there = {(held.who, held.gpus) for held in every}
        if counts:
            self._idle = {account: idle for account, idle in self._idle.items() if account in there}

    def _goes_on(self, replica: Replica) -> None:
        """See whether a leader that has just read what was reserved goes on with it."""
        written = self._world.server.find(CONFIG_MAPS, stored.NAME, NAMESPACE)
        held = {each.who for each in self._of(replica)}
        for kept in stored.read(written).kept if written is not None else ():
            pod = self._world.pod(key_of(kept.who))
            waits = pod is not None and pod["metadata"]["uid"] == kept.who.rpartition("/")[2] and fit.gates(pod)
            if waits and kept.who not in held and pod is not None and "deletionTimestamp" not in pod["metadata"]:
                self._broken("no reservation is lost over failover", f"controller {replica.number}: {kept}")

    def _made(self, claim: Object) -> None:
        """See whether a claim that a controller makes may have the GPUs that it is pinned to."""
        call, world = self._world.server.acting, self._world
        replica = None if call is None or self._replicas is None else self._replicas.find(call.replica)
        if replica is None:
            return
        takes = set(asked(claim, world.truth.homes))
        owner: Object = next(iter(claim["metadata"].get("ownerReferences", ())), {})
        key = claim["metadata"]["namespace"], owner.get("name", "")
        pod = world.pod(key)
        for held in self._of(replica):
            ends = self._seen.get((replica.number, held.who, held.gpus), ())
            if pod is None or takes.isdisjoint(held.gpus) or not ends or ends[0][0] > world.loop.now - UNDER_WAY_S / 2:
                continue  # decided before it was reserved, perhaps
            own = held.who == f"{key[0]}/{key[1]}/{pod['metadata']['uid']}"
            deadline_s = pod["spec"].get("activeDeadlineSeconds")
            over = deadline_s is not None and _now(world) - UNDER_WAY_S + deadline_s <= max(end for _, end in ends)
            if not (own or (pod["spec"].get("priority") or 0) > held.priority or over):
                self._broken("reserved GPUs are given to nobody else", f"{key} gets {sorted(takes)} of {held}")


def _now(world: World) -> float:
    return world.server.clock().timestamp()
