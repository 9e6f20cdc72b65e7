"""What may not last: each state of affairs has a limit, counted from when nothing excuses it any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from dradriver.api.base import names
from dradriver.controller.steps.deadlines import SCHEDULER_PAUSE_S
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Key, Object
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.devices import results
from tests.fakes.control_plane.scheduler import OURS
from tests.simulator import preempting, sharing
from tests.simulator.cast import claim_of
from tests.simulator.gang_rules import GangRules
from tests.simulator.gangs import Gang, plan_of
from tests.simulator.invariants import Invariants
from tests.simulator.replicas import PROMISE_S, UNSCHEDULABLE_S, Replicas
from tests.simulator.state import State
from tests.simulator.world import World

SAMPLE_S: Final = 0.5
MARGIN_S: Final = 4.0
OVERLOOKED_S: Final = 3.5  # one second, and time for the write; a promise that does not fit has five
LIFT_S: Final = 2.0
LATE_S: Final = 8.0  # the same of one that comes to a gang
BIND_S: Final = 60.0
BIND_AT_LAST_S: Final = 240.0  # also where each try of its own failed: on eight nodes, and a new leader begins again
NOTES_S: Final = 5.0
REASON_S: Final = 35.0  # a pod has a reason after 1 s; what is taken from it, or refused, is written again 15 s later
DOUBLE_S: Final = 45.0
ORPHAN_S: Final = 45.0
MOST_GIVEN_UP: Final = 5  # lists and watches of a kind: a new leader may read it anew
BEGINS_S: Final = 30.0  # until a leader acts: all its watches may be late, and for rules of taints it waits 5 s more
RECONNECT_S: Final = 31.0  # a reflector's longest pause


class Liveness:
    """Looks at the cluster twice a second. ``broken`` is called with a name and a text when something lasted."""

    def __init__(
        self, world: World, replicas: Replicas, invariants: Invariants, broken: Callable[[str, str], None]
    ) -> None:
        self.settled_since = 0.0
        self._world, self._replicas, self._invariants, self._broken = world, replicas, invariants, broken
        self._gangs = GangRules(world, broken)
        self._version = (-1, -1)
        self._states: list[State] = []
        self._since: dict[tuple[str, object], float] = {}

    def sample(self) -> None:
        """Look; called again and again."""
        world, now = self._world, self._world.loop.now
        self._excuse()
        version = world.server.version, world.truth.revision
        if self._version != version:
            self._version = version
            more = (state for states in world.states for state in states())
            self._states = [*self._claims(), *self._pods(), *self._gangs.states(), *more]
        self._since = {state[:2]: self._since.get(state[:2], now) for state in self._states}
        if self._states or world.health.since() > now:
            self.settled_since = now
        for state in self._states:
            lasted_s = now - max(self._since[state[:2]], world.health.since(state.pod))
            if lasted_s > state.limit_s:
                self._broken(state.name, f"{state.text}; for {lasted_s:.1f} s")
                return
        world.loop.call_later(SAMPLE_S, self.sample)

    def states(self) -> list[State]:
        """Return what does not hold yet."""
        return self._states

    def _excuse(self) -> None:
        world, now = self._world, self._world.loop.now
        self._invariants.excuse_slow()
        leader = self._replicas.leader
        if leader is None or now - leader.leads_since < 1.0:
            world.health.trouble(2.0)
            return
        if trying := {plural for plural, times in leader.feed.given_up.items() if times > MOST_GIVEN_UP}:
            self._broken("no object ends a watch", f"controller {leader.number} gives up {', '.join(sorted(trying))}")
        for until in (*leader.feed.frozen.values(), leader.feed.late_until, self._invariants.down_until):
            if until > now:
                world.health.trouble(until - now + 3.0)
        if any(now - since < RECONNECT_S for since in leader.feed.away_since.values()):
            world.health.trouble(3.0)
        if not leader.controller.worker.acts and now - leader.leads_since < BEGINS_S:
            world.health.trouble(2.0)

    def _claims(self) -> Iterator[State]:
        world, truth = self._world, self._world.truth
        for gpu, uids in truth.doubles().items():
            pods = sorted(truth.made[uid].pod[0] for uid in uids)
            yield State("a double promise is resolved", gpu, DOUBLE_S, f"{gpu} is promised to {pods}")
        for claim in world.server.all(RESOURCE_CLAIMS):
            metadata = claim["metadata"]
            made = truth.made.get(metadata["uid"])
            if made is None:
                continue
            if names.SET in fit.notes_of(claim):
                yield from self._set(claim)
                continue
            key = metadata["namespace"], made.pod[0]
            pod = world.pod(key)
            uid, text = metadata["uid"], f"claim {metadata['name']}"
            if claim.get("status", {}).get("reservedFor"):
                continue  # whoever else uses it keeps it
            if pod is None or pod["metadata"]["uid"] != made.pod[1]:
                if claim.get("status", {}).get("reservedFor"):
                    continue  # somebody else's pod uses it too
                yield State("no orphans", uid, ORPHAN_S, f"{text}: its pod is gone", key)
            elif not made.takes:
                continue  # the scheduler's to fill; it promises nothing
            elif preempting.waits(world.server, claim):
                yield State("who preempts does not wait for ever", uid, preempting.LONGEST_S, f"{text} waits", key)
            elif truth.live(claim) and not claim.get("status", {}).get("allocation") and self._served(key):
                pause_s = SCHEDULER_PAUSE_S if self._preempts(claim) else 0.0
                yield State("promises end", uid, PROMISE_S + MARGIN_S, f"{text} is a promise", key)
                refused_at = self._invariants.unschedulable_at.get(made.pod[1], 0.0)
                nominated = "nominatedNodeName" in pod.get("status", {})
                if refused_at > made.at and fit.unschedulable(pod) is not None and not nominated:
                    name = "promises end soon after Unschedulable"
                    yield State(name, uid, UNSCHEDULABLE_S + pause_s + MARGIN_S, f"{text} is a promise", key)
                    if self._first_part(claim) and truth.fits(uid):
                        name = "a part that the scheduler overlooks gets its claim anew"
                        yield State(name, uid, OVERLOOKED_S, f"{text} fits", key)

    def _preempts(self, claim: Object) -> bool:
        """Return whether others have to end for a claim, or had to, or for another one of its gang's plan.

        Its gang waits as one: were one claim given back sooner, others would have ended in vain.
        """
        plan = plan_of(claim)[0]
        every = (other for other in self._world.server.all(RESOURCE_CLAIMS) if plan and plan_of(other)[0] == plan)
        return any(names.PREEMPTS in fit.notes_of(other) for other in (claim, *every))

    def _set(self, claim: Object) -> Iterator[State]:
        """What may not last of a claim that pods share: it ends with them, and its promise as one pod's does."""
        metadata, status = claim["metadata"], claim.get("status", {})
        uid, text, key = metadata["uid"], f"claim {metadata['name']}", (metadata["namespace"], metadata["name"])
        found = [(self._world.pod((key[0], name)), owner) for name, owner in sharing.owners(claim)]
        pods = [pod for pod, owner in found if pod is not None and pod["metadata"]["uid"] == owner]
        if not status.get("reservedFor") and all(map(fit.finished, pods)):
            yield State("no orphans", uid, ORPHAN_S, f"{text}: all its pods have ended", key)
        first = sharing.first(self._world.server, key, [pod["metadata"]["uid"] for pod in pods])
        if first is None or status.get("allocation") or "deletionTimestamp" in metadata or not self._served(key):
            return
        pod = first["metadata"]["namespace"], first["metadata"]["name"]
        yield State("promises end", (uid, pod), PROMISE_S + MARGIN_S, f"{text} is a promise to {pod}", pod)

    def _first_part(self, claim: Object) -> bool:
        """Return whether a claim of parts of devices that claims share is the first that its pod ever had."""
        made, uid = self._world.truth.made, claim["metadata"]["uid"]
        share = any(part.cores for takes in made[uid].takes.values() for part in takes or ())
        on_demand = any("mig" in one["opaque"]["parameters"] for one in claim["spec"]["devices"].get("config", ()))
        return (share or on_demand) and all(other.pod != made[uid].pod for one, other in made.items() if one != uid)

    def _pods(self) -> Iterator[State]:
        world = self._world
        for key in world.pods:
            pod = world.pod(key)
            if pod is None or fit.finished(pod) or "deletionTimestamp" in pod["metadata"]:
                continue
            if pod["spec"].get("nodeName"):
                if fit.placed(pod):  # without our label it is nobody's of ours, whatever it got before
                    yield from self._bound(key, pod)
            elif key not in world.spoiled and fit.placed(pod):
                yield from self._waiting(key, pod)

    def _bound(self, key: Key, pod: Object) -> Iterator[State]:
        notes, node, uid = fit.notes_of(pod), pod["spec"]["nodeName"], pod["metadata"]["uid"]
        claim = self._world.server.find(RESOURCE_CLAIMS, fit.claim_names(pod)[0], key[0])
        made = None if claim is None else self._world.truth.made.get(claim["metadata"]["uid"])
        if claim is not None and made is not None and made.takes:
            homes = self._world.truth.homes
            has = sorted(homes[result["device"]].gpu[1] for result in results(claim) if result["device"] in homes)
            said = sorted(filter(None, notes.get(names.ALLOCATED, "").lower().split(",")))
            if has and said != has:
                text = f"pod {key} on {node} has {has} and says {said}"
                yield State("annotations name what a bound pod has", uid, NOTES_S, text, key)
        allocated = claim is not None and bool(results(claim))  # who was bound by hand waits for GPUs that never come
        shared = sharing.claim_of(pod)
        if claim is not None and shared is not None and made is not None and self._served(key):
            uses = any(user["uid"] == uid for user in claim.get("status", {}).get("reservedFor") or ())
            if (
                uses
                and uid not in dict(sharing.owners(claim)).values()
                and "deletionTimestamp" not in claim["metadata"]
            ):
                text = f"pod {key} does not own {shared}, which it uses"
                yield State("who uses a shared claim belongs to it", uid, NOTES_S, text, key)
        if names.REASON in notes and allocated and self._served(key):
            yield State("no false reason", uid, REASON_S, f"bound pod {key} says {notes[names.REASON]!r}", key)

    def _waiting(self, key: Key, pod: Object) -> Iterator[State]:
        world, gates, uid = self._world, fit.gates(pod), pod["metadata"]["uid"]
        found = (world.server.find(RESOURCE_CLAIMS, name, key[0]) for name in fit.claim_names(pod))
        claims = [claim for claim in found if claim is not None]
        promised = any(map(world.truth.live, claims))
        if not (promised and not gates) and not fit.notes_of(pod).get(names.REASON) and self._told(key):
            yield State("every waiting pod has a reason", uid, REASON_S, f"pod {key} waits and says nothing", key)
        gang = world.gangs.get(key)
        if gang is not None and not (self._gangs.started(gang) and self._gangs.honest(map(world.pod, gang.pods))):
            return
        if gates not in ([], [names.GATE]) or pod["spec"].get("schedulerName", "") not in OURS:
            return

        def feasible(pod: Object, node: Object, cpu_taken: int) -> bool:
            joins = gang is None or self._gangs.may_join(gang, node["metadata"]["name"])
            capped = not world.caps.serves(pod, node["metadata"]["name"])
            return joins and not capped and world.scheduler.feasible(pod, node, cpu_taken=cpu_taken)

        if not self._served(key) or not world.truth.has_place(pod, feasible):
            return
        if any("deletionTimestamp" in claim["metadata"] and results(claim) for claim in claims):
            return  # somebody deleted what pods beside it use: it stays until they have ended
        text = f"pod {key} has a place; it says {fit.notes_of(pod).get(names.REASON)!r}"
        yield State("a pod with a place is bound", uid, BIND_S, text, key)
        yield State("a pod with a place is bound, whatever it met", uid, BIND_AT_LAST_S, text)
        # Until the claim controller has cleared a claim away there is no other of its name.
        leaves = gang is not None and gang.restarts and gang.owner  # all of it may be about to go
        waits = bool(leaves) or (gang is not None and (self._leaves_devices(gang) or self._has_to_end(gang)))
        if gates and not waits and not any("deletionTimestamp" in claim["metadata"] for claim in claims):
            # One that comes to a gang waits until it is known where the others are.
            yield State("a pod with a place is lifted", uid, LIFT_S if gang is None else LATE_S, text, key)

    def _has_to_end(self, gang: Gang) -> bool:
        """Return whether a promise names pods of a gang: its late ones would go again at once."""
        uids = {pod["metadata"]["uid"] for pod in map(self._world.pod, gang.pods) if pod is not None}
        promised = (preempting.victims_of(claim) for claim in self._world.server.all(RESOURCE_CLAIMS))
        return any(not uids.isdisjoint(victims) for victims in promised)

    def _leaves_devices(self, gang: Gang) -> bool:
        """Return whether a pod of a gang is gone whose claim is not: whoever comes in its place waits for its GPUs."""
        for key, of in self._world.gangs.items():
            claim = self._world.server.find(RESOURCE_CLAIMS, claim_of(key[1]), key[0]) if of is gang else None
            if claim is not None and results(claim):
                pod = self._world.pod(key)
                if pod is None or pod["metadata"]["uid"] not in dict(sharing.owners(claim)).values():
                    return True
        return False

    def _served(self, key: Key) -> bool:
        """Return whether no namespace's own webhook or quota keeps the pod's writes from being done."""
        return not any(namespace == key[0] for namespace, _ in self._world.plan.refusing)

    def _told(self, key: Key) -> bool:
        return (key[0], PODS.plural) not in self._world.plan.refusing
