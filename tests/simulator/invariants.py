"""What must hold at every event: who holds a GPU, how often is written, and that a server's wish to wait is heeded."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Final

from dradriver.api.base import names
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apistore import Event, Object
from tests.fakes.control_plane import binding, fit
from tests.fakes.storeclient import Call
from tests.simulator import cast, sharing
from tests.simulator.faults import QUOTA_CONFLICT, gist
from tests.simulator.health import pod_of
from tests.simulator.preempting import victims_of
from tests.simulator.replicas import Replicas
from tests.simulator.taking import asked, says_amounts, together
from tests.simulator.truth import Made
from tests.simulator.world import World

MOST_WRITES: Final = ((1.0, 80), (10.0, 250))  # of one process: seconds, writes
MOST_WRITES_OF_ONE: Final = 16  # of one process to one object in 10 s
MOST_WRITES_OF_MEMBER: Final = 30  # the same of a gang's claim: each member that comes has all tried at once
MOST_READS: Final = (10.0, 300)
EACH: Final = 4  # of so many to each object nothing is said: gangs that begin or end at once have many objects
REASON_EVERY_S: Final = 15.0
UNSURE_S: Final = 12.0  # until a controller has found out what became of a write without an answer
HUNG_S: Final = 1.0  # a creation that is under way for longer holds up nobody's GPUs
AGAIN_S: Final = 0.1  # between the end of a request and the next for the same pod, if it is its turn
SLOW_S: Final = 0.3  # a request that is under way for longer excuses the pod that it is about


class Invariants:
    """Looks at every request and every event. ``broken`` is called with a name and a text when one does not hold.

    Attributes:
        down_until: The server cannot be reached before.
        unschedulable_at: When each pod, by uid, was last said to be unschedulable.
        writes: Writes that were sent.
    """

    def __init__(self, world: World, broken: Callable[[str, str], None]) -> None:
        self.down_until = 0.0
        self.unschedulable_at: dict[str, float] = {}
        self.writes = 0
        self.replicas: Replicas | None = None
        self._world, self._broken = world, broken
        self._clock = world.loop.time
        self._under_way: dict[int, tuple[float, Call]] = {}
        self._sent: dict[tuple[object, ...], collections.deque[tuple[float, object]]] = {}
        self._not_before: dict[tuple[object, ...], float] = {}
        self._answers: dict[tuple[int, tuple[str, str]], float] = {}
        self._ended: dict[tuple[str, str], float] = {}  # by pod, when the last request about it did
        self._told: dict[tuple[int, str], float] = {}
        self._early: set[tuple[int, str]] = set()
        world.server.listeners.append(self._happened)

    # Requests.

    def sent(self, call: Call) -> None:
        now = self._clock()
        self._under_way[id(call)] = now, call
        if call.verb != "watch":
            self._world.trace("controller %d sends %s %s", call.replica, call, gist(call))
        if not call.writes:
            self._count((call.replica, "reads"), *MOST_READS, call)
            return
        self.writes += 1
        for seconds, most in MOST_WRITES:
            self._count((call.replica, seconds), seconds, most, call)
        most = MOST_WRITES_OF_MEMBER if pod_of(call) in self._world.gangs else MOST_WRITES_OF_ONE
        self._count((call.replica, call.plural, call.key), 10.0, most, call)
        if call.verb == "create" and call.plural == RESOURCE_CLAIMS.plural:
            self._answers.pop((call.replica, call.key), None)
            if not says_amounts(call.body):
                self._broken("claims of parts say all that they take", f"{call}: {gist(call)}")
            self._in_order(call)
            self._world.truth.asked(id(call), call.key, asked(call.body, self._world.truth.homes))
        if now < self._not_before.get(_same(call), 0.0) - 0.01:
            self._broken("Retry-After", f"{call} is sent again before the time that the server asked for")

    def answered(self, call: Call, error: Exception | None) -> None:
        self._under_way.pop(id(call), None)
        self._ended[pod_of(call)] = self._clock()
        if call.plural == RESOURCE_CLAIMS.plural and call.verb in ("create", "get"):
            known = error is None or isinstance(error, ApiError)
            if known:
                self._answers[call.replica, call.key] = self._clock()
            if call.verb == "create":
                self._world.loop.call_later(0.0 if known else UNSURE_S, self._certain, call)
        if error is None or self.replicas is None or self.replicas.find(call.replica) is None:
            return
        self._world.trace("controller %d is answered: %s: %.150s", call.replica, call, error)
        self._world.health.failed(call, error)
        if isinstance(error, ApiError) and error.message == QUOTA_CONFLICT[2] and call.verb == "create":
            for key in self._world.pods:  # those behind it keep their turn
                if key[0] == call.namespace:
                    self._world.health.excuse(key, 3.0)
        if isinstance(error, ApiError) and error.status == 429 and error.retry_after_s:
            until = self._clock() + error.retry_after_s
            self._not_before[_same(call)] = until

    def _certain(self, call: Call) -> None:
        self._world.truth.certain(id(call))

    def kill(self, replica: int) -> None:
        found = self.replicas.find(replica) if self.replicas is not None else None
        if self.replicas is not None and found is not None:
            self.replicas.kill(found)

    def excuse_slow(self) -> None:
        """Excuse pods whose requests are under way for long, and everybody where lists are.

        Several slow writes in a namespace excuse all of that: its own webhook may be what is slow.
        """
        clogged: collections.Counter[str] = collections.Counter()
        for began, call in self._under_way.values():
            if self._clock() - began < SLOW_S:
                continue
            if call.name and call.plural != RESOURCE_SLICES.plural:  # a new leader waits a while to know of seats
                self._world.health.excuse(pod_of(call), 12.0)
                clogged[call.namespace] += call.writes
            else:
                self._world.health.trouble(3.0)
        for key in self._world.pods:
            if clogged[key[0]] > 1:
                self._world.health.excuse(key, 3.0)

    def _count(self, what: tuple[object, ...], seconds: float, most: int, call: Call) -> None:
        times = self._sent.setdefault(what, collections.deque())
        times.append((self._clock(), (call.plural, call.key)))
        while times[0][0] < self._clock() - seconds:
            times.popleft()
        if len(times) > most and (len(objects := {what for _, what in times}) == 1 or len(times) > EACH * len(objects)):
            self._broken("no hot loop", f"{len(times)} requests within {seconds:g} s; the last: {call}")

    # Events.

    def _happened(self, event: Event) -> None:
        call = self._world.server.acting
        if event.plural == RESOURCE_CLAIMS.plural:
            if call is not None and event.old is None and event.new is not None:
                self._made(event.new, event.version, call)
            if call is not None and call.verb == "delete" and self._used(event.old):
                self._broken("nobody loses what he uses", f"{call}: {event.key} is in use")
            truth = self._world.truth
            for gpu, loads in truth.allocated().items():
                if not together(truth.homes, gpu, list(loads.values())):
                    self._broken("never allocated twice", f"{gpu} was given to {loads}")
        elif event.plural == PODS.plural and event.old is not None and event.new is not None:
            message = fit.unschedulable(event.new)
            if message is not None and message != fit.unschedulable(event.old):
                self.unschedulable_at[event.new["metadata"]["uid"]] = self._clock()
            if call is not None:
                if fit.gates(event.old) and not fit.gates(event.new):
                    self._lifted(event.new, call)
                self._patched(call, event, event.old, event.new)

    def _used(self, claim: Object | None) -> bool:
        """Return whether somebody uses a claim; who only waits for its conditions to be bound loses nothing."""
        if claim is None or not binding.conditional(claim):
            return bool((claim or {}).get("status", {}).get("reservedFor"))
        bound = (pod["metadata"]["uid"] for pod in self._world.server.all(PODS) if pod["spec"].get("nodeName"))
        return not set(binding.users(claim)).isdisjoint(bound)

    def _made(self, claim: Object, version: int, call: Call) -> None:
        owners = claim["metadata"].get("ownerReferences", ())
        shared = names.SET in fit.notes_of(claim)
        owner: Object = next((owner for owner in owners if owner.get("controller") or shared), {})
        truth = self._world.truth
        takes, uid = asked(claim, truth.homes), claim["metadata"]["uid"]
        made = Made(call.replica, version, self._clock(), takes, (owner.get("name", ""), owner.get("uid", "")))
        truth.add(uid, made)
        began, _ = self._under_way.get(id(call), (self._clock(), call))
        if outside := self._world.partitions.outside(call.namespace, takes, began):
            self._broken("nobody is placed where it may not be", f"{call}: {call.key} has {outside}")
        if self._clock() - began >= HUNG_S:
            return  # its GPUs were kept for nobody in the meantime; it is taken back if another has got them

        def known(uid: str) -> bool:
            other = truth.made[uid]
            seen = other.replica == call.replica or other.version <= call.seen
            return seen and self._answered_before(uid, began)

        replica = None if self.replicas is None else self.replicas.find(call.replica)
        if beyond := self._world.caps.beyond(claim, call, 0.0 if replica is None else replica.leads_since, known):
            self._broken("no cap is exceeded by what a controller places", beyond)
        ends = victims_of(claim)  # also where its own pod went while it was being made
        for gpu in sorted(takes):
            promised = (other for other in truth.promised().get(gpu, ()) if truth.made[other].pod[1] not in ends)
            others = [other for other in promised if other != uid and known(other)]
            if not truth.agree(gpu, others, (call.namespace, takes[gpu])):
                pods = {truth.made[other].pod[0]: truth.made[other].takes[gpu] for other in others}
                self._broken(
                    "no GPU in two live claims",
                    f"{claim['metadata']['name']} is pinned to {takes[gpu]} of {gpu}, of which claims of {pods} hold "
                    f"some; controller {call.replica} could know",
                )

    def _answered_before(self, uid: str, time_s: float) -> bool:
        """Return whether a claim's maker had been told by then that it is there: until that, it holds up nobody."""
        claims = self._world.server.all(RESOURCE_CLAIMS)
        keys = [(c["metadata"]["namespace"], c["metadata"]["name"]) for c in claims if c["metadata"]["uid"] == uid]
        replica = self._world.truth.made[uid].replica
        return any(self._answers.get((replica, key), time_s + 1) <= time_s for key in keys)

    def _lifted(self, pod: Object, call: Call) -> None:
        began, _ = self._under_way.get(id(call), (self._clock(), call))
        if self._clock() - began >= HUNG_S:
            return  # what it shared may have been taken back meanwhile; it is to belong to what it uses after all
        shared = sharing.claim_of(pod)
        claim = None if shared is None else self._world.server.find(RESOURCE_CLAIMS, shared[1], shared[0])
        if claim is not None and claim["metadata"]["uid"] in self._world.truth.made:
            uid = pod["metadata"]["uid"]
            if uid not in dict(sharing.owners(claim)).values():
                self._broken("who is lifted belongs to the claim", f"{pod['metadata']['name']} does not own {shared}")

    def _in_order(self, call: Call) -> None:
        """Look whether an older pod of a queue is passed over: gated, without a claim, and nobody writes to it."""
        queue, lately = self._world.queue, self._clock() - AGAIN_S
        busy = {pod_of(other) for _, other in self._under_way.values()}
        pod = pod_of(call)
        for key in queue[: queue.index(pod)] if pod in queue else ():
            older = self._world.pod(key)
            gated = older is not None and fit.gates(older) and "deletionTimestamp" not in older["metadata"]
            if not gated or key in self._world.spoiled or key in busy or self._ended.get(key, 0.0) > lately:
                continue
            if self._world.server.find(RESOURCE_CLAIMS, cast.claim_of(key[1]), key[0]) is None:
                self._broken("the server's trouble reorders nothing", f"{call}, and {key} is passed over")

    def _patched(self, call: Call, event: Event, old: Object, new: Object) -> None:
        before, after = fit.notes_of(old), fit.notes_of(new)
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        if changed != {names.REASON} or names.REASON not in after or old["spec"] != new["spec"]:
            return
        what = call.replica, new["metadata"]["uid"]
        last = self._told.get(what)
        self._told[what] = self._clock()
        early = last is not None and self._clock() - last < REASON_EVERY_S - 0.5
        if early and pod_of(call) in self._world.gangs and what not in self._early:
            self._early.add(what)  # when all of its gang are there a pod is told sooner, once, why they have no place
        elif early and last is not None:
            self._broken(
                "one reason in 15 s",
                f"{call}: {self._clock() - last:.1f} s after the last: {before.get(names.REASON)!r}, "
                f"now {after[names.REASON]!r}",
            )


def _same(call: Call) -> tuple[object, ...]:
    """What a request has in common with one that is sent again: a patch of a status is another than of an object."""
    status = isinstance(call.body, dict) and "status" in call.body
    return call.replica, call.verb, call.plural, call.key, isinstance(call.body, list), status
