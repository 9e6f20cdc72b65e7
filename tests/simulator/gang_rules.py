"""What must hold of gangs: at every event, and of what may not last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dradriver.api.base import names
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Object, key_of
from tests.fakes.control_plane import binding, fit
from tests.fakes.control_plane.devices import results
from tests.fakes.storeclient import Call
from tests.simulator.gangs import GPUS, Gang, living, plan_of
from tests.simulator.limit_rules import LimitRules
from tests.simulator.owner_rules import OwnerRules
from tests.simulator.replicas import PROMISE_S
from tests.simulator.state import State
from tests.simulator.world import World

HELD_S: Final = PROMISE_S + 10.0  # and a tenth of a second for each pod
SEATED_S: Final = 4.0
LEAVE_S: Final = 20.0
TWO_PLANS_S: Final = 8.0
LIFT_S: Final = 8.0
START_S: Final = 90.0
BOUND_S: Final = 90.0
ROUND_S: Final = 1.0  # in which the claims of a plan are made, whatever another leader takes back of them meanwhile
KEPT_S: Final = 125.0  # a place is kept for two minutes


class GangRules:
    """Looks at every event, and says what of gangs may not last."""

    def __init__(self, world: World, broken: Callable[[str, str], None]) -> None:
        self._world, self._broken = world, broken
        self._made: dict[str, dict[int, str]] = {}  # by digest: index -> uid of claims that were made, of this round
        self._back: dict[str, tuple[int, int]] = {}  # claims that a controller took back, by uid: which one, when
        self._knew: dict[str, tuple[int, int]] = {}  # up to which its maker had seen claims, and pods, by a claim's uid
        self._ended: dict[str, dict[str, int]] = {}  # by digest: when each claim of it was gone, or to go, by uid
        self._begun: dict[str, float] = {}  # by digest: when its round began
        self._seated: dict[str, set[int]] = {}  # by digest: indices that had their seat once
        self._owners, self._limits = OwnerRules(world, broken), LimitRules(world, broken)
        world.server.listeners.append(self._happened)

    # Events.

    def _happened(self, event: Event) -> None:
        call = self._world.server.acting
        if event.plural == RESOURCE_CLAIMS.plural:
            self._claim(event.old, event.new)
        elif event.plural == PODS.plural and event.key in self._world.gangs:
            if call is not None and call.verb == "delete":
                self._broken("pods of gangs are left alone", f"{call}")
            if event.old is not None and _runs(event.old) and not _runs(event.new):
                self._lost(event.old)
            if event.old is None or event.new is None:
                return
            gang = self._world.gangs[event.key]
            if call is not None and fit.gates(event.old) and not fit.gates(event.new):
                self._lifted(gang, event.new, call)
            if event.new["spec"].get("nodeName") and not event.old["spec"].get("nodeName"):
                self._bound(gang, event.old)

    def _lost(self, pod: Object) -> None:
        """Nobody else need get the GPUs of a lost pod for a while."""
        claim = self._claim_of(pod)
        truth, loop = self._world.truth, self._world.loop
        if claim is not None and claim["metadata"]["uid"] in truth.made:
            gpus = truth.made[claim["metadata"]["uid"]].takes
            truth.keep(gpus, 1)
            loop.call_later(KEPT_S, truth.keep, gpus, -1)

    def _claim(self, old: Object | None, new: Object | None) -> None:
        claim = new if new is not None else old
        assert claim is not None
        plan, _, index = plan_of(claim)
        if not plan:
            return
        if old is None:
            there = [c for c in self._world.server.all(RESOURCE_CLAIMS) if plan_of(c)[0] == plan and not _going(c)]
            now = self._world.loop.now
            if len(there) <= 1 and now - self._begun.get(plan, -ROUND_S) >= ROUND_S:
                self._made[plan], self._seated[plan], self._begun[plan] = {}, set(), now
            self._made[plan][index] = claim["metadata"]["uid"]
        call = self._world.server.acting
        if old is None and call is not None:
            self._knew[claim["metadata"]["uid"]] = call.seen, call.seen_pods
        if old is not None and not _going(old) and (new is None or _going(new)):
            self._ended.setdefault(plan, {})[claim["metadata"]["uid"]] = self._world.server.version
        if call is not None and old is not None and not _going(old) and (new is None or _going(new)):
            self._back[claim["metadata"]["uid"]] = call.replica, self._world.server.version
        if new is not None and results(new) and binding.users(new):
            self._seated.setdefault(plan, set()).add(index)

    def _lifted(self, gang: Gang, pod: Object, call: Call) -> None:
        claim = self._claim_of(pod)
        if claim is None or self.started(gang) or not self.honest(living(map(self._world.pod, gang.pods))):
            return
        seen, seen_pods = self._knew.get(claim["metadata"]["uid"], (0, 0))
        if not self._limits.known_to_end(gang, min(call.seen_pods, seen_pods)):
            return
        plan, size, _ = plan_of(claim)
        gone = {uid for uid, (by, when) in self._back.items() if by == call.replica and when <= call.version}
        unseen = {uid for uid, when in self._ended.get(plan, {}).items() if when > min(call.seen, seen)}
        made = (set(self._made.get(plan, {}).values()) | unseen) - gone
        if not plan or len(made) < size:
            self._broken(
                "no gate of a gang opens before all claims of one plan exist",
                f"{key_of(pod)} is lifted with {len(made)} of {size} claims of plan {plan!r}",
            )

    def _bound(self, gang: Gang, pod: Object) -> None:
        claim = self._claim_of(pod)
        if claim is None or not binding.conditional(claim) or self.started(gang, besides=pod):
            return
        if not self.honest(living(map(self._world.pod, gang.pods))):
            return
        plan, size, _ = plan_of(claim)
        if len(self._seated.get(plan, ())) < size:
            self._broken(
                "no pod of a gang is bound before all were seated once",
                f"{key_of(pod)} is bound; seated were {sorted(self._seated.get(plan, ()))} of {size}",
            )

    # What may not last.

    def states(self) -> Iterator[State]:
        """Give what may not last of all gangs."""
        for gang in {id(gang): gang for gang in self._world.gangs.values()}.values():
            yield from self._of(gang)
        yield from self._owners.states()

    def _of(self, gang: Gang) -> Iterator[State]:
        world, pod_key = self._world, gang.pods[0]
        pods = living(map(world.pod, gang.pods))
        if any(namespace == gang.key[0] for namespace, _ in world.plan.refusing) or not self.honest(pods):
            return
        claims = [(pod, claim) for pod in pods if (claim := self._claim_of(pod)) is not None]
        claims = [(pod, claim) for pod, claim in claims if claim["metadata"]["uid"] in world.truth.made]
        for pod, claim in claims:
            if _going(claim) and not pod["spec"].get("nodeName"):
                text = f"claim {claim['metadata']['name']} was given back, and stays"
                yield State("what is given back goes", claim["metadata"]["uid"], LEAVE_S, text, pod_key)
        there = [(pod, claim) for pod, claim in claims if not _going(claim)]
        if self.started(gang):
            for pod, claim in there:
                if binding.conditional(claim) and _told(claim) and not pod["spec"].get("nodeName"):
                    text = f"{key_of(pod)} was told to go and is not bound"
                    yield State("who was told to go is bound", pod["metadata"]["uid"], BOUND_S, text, pod_key)
            return
        plans = {plan_of(claim)[0]: plan_of(claim)[1] for _, claim in there}
        if len(plans) > 1:
            text = f"{gang.key} has claims of plans {sorted(plans)}"
            yield State(
                "no two plans of a gang side by side", (gang.key, tuple(sorted(plans))), TWO_PLANS_S, text, pod_key
            )
        for plan, size in plans.items():
            own = [(pod, claim) for pod, claim in there if plan_of(claim)[0] == plan]
            uids = tuple(sorted(claim["metadata"]["uid"] for _, claim in own))
            seated = [pod["metadata"]["uid"] in binding.users(claim) for pod, claim in own]
            text = f"{gang.key} has {len(own)} of {size} claims of plan {plan}, {sum(seated)} with their place"
            limit_s = HELD_S + 0.1 * size
            yield State("no part of a gang holds GPUs past its deadline", (gang.key, uids), limit_s, text, pod_key)
            if len(own) >= size and all(seated) and binding.conditional(own[0][1]):
                yield State("a gang that is seated goes", (gang.key, uids), SEATED_S, text, pod_key)
        yield from self._waiting(gang, pods, lifted=any(not fit.gates(pod) for pod in pods), has=bool(claims))

    def _waiting(self, gang: Gang, pods: list[Object], *, lifted: bool, has: bool) -> Iterator[State]:
        # Plain pods that ended may be of an earlier run under the same name: only an owner says that they are not.
        pods_of = gang.pods if gang.owner else ()
        done = [pod for key in pods_of if (pod := self._world.pod(key)) is not None and _well(pod)]
        least = max(1, gang.size[0] - len(done))
        if gang.owner == "PodGroup":
            least = max(least, len(pods))  # the scheduler tries none while another one has a gate
        # A pod that another's gate holds stops none that suffice without it.
        pods = [pod for pod in pods if fit.gates(pod) in ([], [names.GATE])]
        if gang.picky or len(pods) < least:
            return
        caps, gpus = self._world.caps, sum(map(_gpus, pods))
        left = frozenset(node for node in self._world.nodes if caps.leaves(gang.key[0], gpus, node))
        if not any(self._fits(pods, least, nodes & left) for nodes in self._limits.within(gang)):
            return
        text = f"{gang.key} has a place; its pods say {[fit.notes_of(pod).get(names.REASON) for pod in pods]}"
        yield State("a gang with a place starts", gang.key, START_S, text, gang.pods[0])
        if not lifted and not has:
            yield State("a gang with a place is lifted", gang.key, LIFT_S, text, gang.pods[0])

    def may_join(self, gang: Gang, node: str) -> bool:
        """Return whether a pod of a gang that runs may be on a node."""
        return self._limits.may_join(gang, node)

    def _fits(self, pods: list[Object], least: int, nodes: frozenset[str]) -> bool:
        """Return whether so many of a gang's pods have places at once on nodes, beside what others were promised."""
        world, truth = self._world, self._world.truth
        own = {(pod["metadata"]["namespace"], name) for pod in pods for name in fit.claim_names(pod)}
        free = {name: truth.whole(name, own, pods[0]["metadata"]["namespace"]) for name in world.nodes}
        cpu = truth.promised_cpu({pod["metadata"]["uid"] for pod in pods})
        placed = 0
        for pod in sorted(pods, key=lambda pod: -_gpus(pod)):
            for node in world.server.all(NODES):
                name = node["metadata"]["name"]
                wants = _gpus(pod)
                ready = {"type": "Ready", "status": "True"} in node.get("status", {}).get("conditions", ())
                if name not in nodes or free[name] < wants or not ready or name in truth.aside:
                    continue
                if world.scheduler.feasible(pod, node, cpu_taken=cpu.get(name, 0)):
                    free[name] -= wants
                    cpu[name] = cpu.get(name, 0) + fit.cpu_of(pod)
                    placed += 1
                    break
        return placed >= least

    def _claim_of(self, pod: Object) -> Object | None:
        found = self._world.server.find(RESOURCE_CLAIMS, fit.claim_names(pod)[0], pod["metadata"]["namespace"])
        owners = () if found is None else found["metadata"].get("ownerReferences") or ()
        return found if any(owner["uid"] == pod["metadata"]["uid"] for owner in owners) else None

    def started(self, gang: Gang, besides: Object | None = None) -> bool:
        """Return whether a living pod of a gang is bound, or was told to go."""
        for pod in living(map(self._world.pod, gang.pods)):
            if besides is not None and pod["metadata"]["uid"] == besides["metadata"]["uid"]:
                continue
            claim = self._claim_of(pod)
            if pod["spec"].get("nodeName") or (besides is None and claim is not None and _told(claim)):
                return True
        return False

    def honest(self, pods: Iterable[Object | None]) -> bool:
        """Return whether nobody did anything to the gang's pods that no controller can be held to."""
        there = [pod for pod in pods if pod is not None]
        return not any(key_of(pod) in self._world.spoiled or not fit.placed(pod) for pod in there)


def _runs(pod: Object | None) -> bool:
    """Return whether a pod is bound and neither has ended nor is about to."""
    return pod is not None and bool(pod["spec"].get("nodeName")) and bool(living([pod]))


def _gpus(pod: Object) -> int:
    return int(fit.notes_of(pod)[GPUS])


def _well(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Succeeded")


def _going(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _told(claim: Object) -> bool:
    """Return whether a claim's seat says that its pod may go."""
    entries = claim.get("status", {}).get("devices") or ()
    return any(c["type"] == "gang-go" and c["status"] == "True" for e in entries for c in e.get("conditions") or ())
