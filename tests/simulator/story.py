"""What happens in one seed, and when: drawn once at the beginning, so that the rest only follows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from dradriver.api.base import names
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Object
from tests.fakes.control_plane import fit
from tests.simulator import cast, hostile, machines, sharing
from tests.simulator.campaigns import CAMPAIGNS, DRAWN, ROUNDS
from tests.simulator.faults import REFUSALS
from tests.simulator.invariants import Invariants
from tests.simulator.partition_rules import BROUGHT_S
from tests.simulator.replicas import Replica, Replicas
from tests.simulator.server import KINDS
from tests.simulator.world import Node, World

LEASE_S: Final = 15.0
FROZEN_S: Final = 60.0
QUOTA, WEBHOOK = 2, 9  # numbers in REFUSALS
REFUSING: Final = (
    ("hook-claims", RESOURCE_CLAIMS.plural, WEBHOOK),
    ("hook-pods", PODS.plural, WEBHOOK),
    ("quota", RESOURCE_CLAIMS.plural, QUOTA),
)


class Story:
    """One seed's events. ``active_s`` is when faults and changes end."""

    def __init__(
        self, world: World, replicas: Replicas, invariants: Invariants, campaigns: Sequence[str] | None = None
    ) -> None:
        self._world, self._replicas, self._invariants = world, replicas, invariants
        self._rng = rng = world.rng
        self.active_s = rng.uniform(10, 40)
        self.calm = rng.random() < 0.15
        self.hostile = rng.random() < 0.35
        world.plan.until = self.active_s
        self._namespaces = ["default", "default", "team-a"]
        self._sharing = random.Random(
            str(rng.getstate()[1][:4])
        )  # beside: stories without such pods stay what they are
        self._shares = self._sharing.choice((0.0, 0.0, 0.4, 0.9))
        self._foes = random.Random(str(rng.getstate()[1][4:8]))  # beside, for the same reason
        drawn = self._foes.sample(DRAWN, self._foes.randint(1, 2)) if self._foes.random() < 0.3 else ()
        self._campaigns = drawn if campaigns is None else campaigns

    def begin(self) -> None:
        """Set the stage and plan all that is to happen."""
        world, rng = self._world, self._rng
        assert REFUSALS[QUOTA][0] == 403
        for number in range(rng.randint(1, 4)):
            cpu = rng.choice((4, 8, 16))
            form = rng.choice(("shared", "mixed", *machines.FORMS))
            profile, zone = rng.choice(machines.PROFILES), rng.choice("ab")
            world.add_node(Node(f"n{number + 1}", profile, cpu=cpu, zone=zone, form=form))
        self._faults()
        for number in range(rng.randint(3, 12)):
            at = rng.choice((0.0, rng.uniform(0, 2), rng.uniform(0, self.active_s)))
            self._at(at, self._pod, f"p{number + 1}")
        for _ in range(rng.randint(0, 20)):
            self._at(rng.uniform(0, self.active_s), self._change)
        if self.hostile:
            for _ in range(rng.randint(1, 8)):
                self._at(rng.uniform(0, self.active_s), hostile.any_of, world, rng)
            if rng.random() < 0.1:  # a cluster without our admission policy
                self._at(rng.uniform(0, self.active_s), hostile.forged_claim, world)
        for name in self._campaigns:
            world.trace("campaign: %s", name)
            CAMPAIGNS[name](world, self._foes, self._foes.uniform(0, self.active_s - ROUNDS - 1))
        self.active_s = max(self.active_s, world.plan.until)
        if world.partitions.file.tenants:
            self._replicas.policies = world.partitions.file
        world.partitions.told = lambda file: self._replicas.follow(file, lambda: self._foes.uniform(0, BROUGHT_S))
        if world.policies is not None:
            self._replicas.policies, self._replicas.keeps = world.policies, True
        self._at(rng.choice((0.0, rng.uniform(0, 3))), self._start)

    def _faults(self) -> None:
        """Draw what goes wrong: nothing; a few writes, each once; many; or all of some objects'."""
        world, rng, plan = self._world, self._rng, self._world.plan
        if self.calm:
            plan.slow = 0.0
            return
        kind = rng.random()
        if kind < 0.5:
            for _ in range(rng.randint(1, 3)):
                plan.planned[rng.randint(1, 30)] = plan.kind()
        elif kind < 0.75:
            plan.rate = rng.choice((0.05, 0.15, 0.4))
        else:
            plan.hanging = {f"p{n}" for n in rng.sample(range(1, 13), 3)} | {cast.claim_of(f"p{rng.randint(1, 12)}")}
        if rng.random() < 0.4:
            for namespace, plural, number in REFUSING:
                plan.refusing[namespace, plural] = number
                self._namespaces.append(namespace)
            plan.refusing["hook-pods", RESOURCE_CLAIMS.plural] = WEBHOOK
        self._replicas.late = rng.choice((0.0, 0.0, 0.05, 0.3))
        world.scheduler.nominates = rng.choice((0.0, 0.0, 0.2))
        world.scheduler.overlooks = rng.choice((0.0, 0.2, 0.6))
        world.housekeeping.collects = rng.random() < 0.85
        troubles = (
            self._kill, self._kill, self._fail_over, self._split, self._freeze, self._freeze_and_fail_over,
            self._break, self._outage, self._pause,
        )  # fmt: skip
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
            self._at(rng.uniform(0, self.active_s), rng.choice(troubles))

    def end(self) -> None:
        """Let all that was frozen or refused come right."""
        self._replicas.late = 0.0
        self._world.scheduler.nominates = 0.0
        self._world.scheduler.overlooks = 0.0

    def drain(self) -> None:
        """Take all pods away."""
        for key in self._world.existing(lambda pod: "deletionTimestamp" not in pod["metadata"]):
            self._world.delete_pod(key)

    # The controller's processes.

    def _start(self) -> None:
        self._replicas.lead(self._replicas.start())
        if self._rng.random() < 0.5:
            self._replicas.start()

    def _kill(self) -> None:
        leader = self._replicas.leader
        if leader is not None:
            self._replicas.kill(leader)

    def follow(self) -> None:
        """Called after every kill: another process leads, sooner or later."""
        delay_s = self._rng.choice((0.2, 2.0, LEASE_S))
        self._world.health.trouble(delay_s + 3.0)
        self._world.loop.call_later(delay_s, self._succeed)

    def _succeed(self) -> None:
        if self._replicas.leader is None:
            self._replicas.lead(self._replicas.alive[0] if self._replicas.alive else self._replicas.start())

    def _standby(self, besides: Replica) -> Replica:
        return next((r for r in self._replicas.alive if not r.leads and r is not besides), self._replicas.start())

    def _fail_over(self) -> None:
        """The leader loses its lease and is told so; another goes on, and the first stands by."""
        leader = self._replicas.leader
        if leader is not None:
            self._world.health.trouble(5.0)
            self._replicas.resign(leader)
            self._replicas.lead(self._standby(leader))

    def _split(self) -> None:
        """Another leads, and the old one acts on for as long as it may not have noticed."""
        leader = self._replicas.leader
        if leader is not None:
            self._world.health.trouble(LEASE_S + 5.0)
            self._replicas.lead(self._standby(leader))
            self._world.loop.call_later(self._rng.uniform(0.5, LEASE_S), self._replicas.kill, leader)

    def _freeze(self) -> None:
        leader = self._replicas.leader
        if leader is not None:
            self._freeze_one(leader)

    def _freeze_and_fail_over(self) -> None:
        """The one that is to lead next sees nothing more of a kind, and then it leads."""
        leader = self._replicas.leader
        if leader is not None:
            self._freeze_one(self._standby(leader))
            self._world.loop.call_later(self._rng.uniform(0, 5), self._kill)

    def _freeze_one(self, replica: Replica) -> None:
        plural = self._rng.choice(KINDS).plural
        self._world.trace("controller %d sees no %s for %g s", replica.number, plural, FROZEN_S)
        replica.feed.freeze(plural, self._world.loop.now + FROZEN_S)

    def _break(self) -> None:
        """Watches break, or end, and perhaps the versions that they had reached are forgotten."""
        rng, world = self._rng, self._world
        how = rng.choice(("error", "end", "gone"))
        plural = rng.choice((None, *(kind.plural for kind in KINDS)))
        if rng.random() < 0.5:
            world.server.oldest = world.server.version + 1
        world.trace("watches of %s break: %s", plural, how)
        for replica in self._replicas.alive:
            replica.feed.cut(plural, how)

    def _outage(self) -> None:
        for_s = self._rng.uniform(0.5, 8)
        self._world.trace("the API server is away for %.1f s", for_s)
        self._invariants.down_until = self._world.loop.now + for_s
        for replica in self._replicas.alive:
            replica.feed.cut(None, "error")

    def _pause(self) -> None:
        """The scheduler, or those who clear away, do nothing for a while."""
        until = self._world.loop.now + self._rng.uniform(1, 20)
        which = self._rng.choice((self._world.scheduler, self._world.housekeeping))
        which.paused_until = until
        self._world.trace("%s pauses until %.1f", type(which).__name__, until)
        if which is self._world.scheduler:
            self._world.health.trouble(until - self._world.loop.now + 2.0)

    # The cluster.

    def _pod(self, name: str) -> None:
        rng, world = self._rng, self._world
        pod = cast.any_pod(name, rng.choice(self._namespaces), rng)
        if self._sharing.random() < self._shares:
            pod = sharing.any_pod(name, pod["metadata"]["namespace"], self._sharing, pod["spec"])
        key = pod["metadata"]["namespace"], name
        if rng.random() < 0.1:
            world.scheduler.refused[key] = frozenset(rng.sample(sorted(world.nodes), rng.randint(1, len(world.nodes))))
        world.add_pod(pod)

    def _change(self) -> None:
        rng, world = self._rng, self._world
        node = world.nodes[rng.choice(sorted(world.nodes))]
        running = world.existing(lambda pod: bool(pod["spec"].get("nodeName")) and not fit.finished(pod))
        waiting = world.existing(lambda pod: not pod["spec"].get("nodeName"))
        acts: list[Callable[[], object]] = [
            lambda: self._with_one(running, world.finish_pod),
            lambda: self._with_one(running, world.delete_pod),
            lambda: self._with_one(waiting, world.delete_pod),
            lambda: self._with_one(waiting, lambda key: world.server.edit(PODS, key, _touched)),
            lambda: self._with_one(waiting, self._lift_other_gate),
            lambda: self._with_one(waiting, self._delete_claim),
            lambda: world.take(node, rng.randint(1, 4)),
            lambda: world.take(node, rng.randint(1, 2)),
            lambda: world.take_part(node),
            lambda: world.take_part(node),
            lambda: world.reform(node, rng.choice(tuple(machines.FORMS))),
            self._release,
            lambda: world.fill_cpu(node, rng.choice((1, 4, 8))),
            lambda: self._show(node, "gone", rng.choice(machines.LOST)),
            lambda: self._show(node, "cordoned", not node.cordoned),
            lambda: self._show(node, "ready", not node.ready),
            lambda: self._show(node, "tainted", not node.tainted),
            lambda: self._show(node, "zone", rng.choice("ab")),
            lambda: self._hiccup(node),
        ]
        rng.choice(acts)()

    def _with_one(self, keys: list[tuple[str, str]], act: Callable[[tuple[str, str]], object]) -> None:
        if keys:
            act(self._rng.choice(keys))

    def _show(self, node: Node, what: str, value: object) -> None:
        setattr(node, what, value)
        if what == "gone":
            self._world.publish(node)
        else:
            self._world.show_node(node)

    def _hiccup(self, node: Node) -> None:
        """A node's pool goes, or is incomplete, for a while."""
        if self._rng.random() < 0.5:
            self._world.withdraw_pool(node)
        else:
            self._world.publish(node, whole=False)
        self._world.loop.call_later(self._rng.uniform(0.1, 15), self._world.publish, node)

    def _release(self) -> None:
        for claim in self._world.server.all(RESOURCE_CLAIMS):
            name = claim["metadata"]["name"]
            if name.startswith("rival"):
                self._world.trace("%s ends", name)
                self._world.server.remove(RESOURCE_CLAIMS, ("default", name))
                return

    def _delete_claim(self, key: tuple[str, str]) -> None:
        self._world.trace("somebody deletes the claim of %s/%s", *key)
        pod = self._world.pod(key)
        shared = None if pod is None else sharing.claim_of(pod)
        self._world.server.remove(RESOURCE_CLAIMS, shared or (key[0], cast.claim_of(key[1])))

    def _lift_other_gate(self, key: tuple[str, str]) -> None:
        self._world.server.edit(PODS, key, _without_other_gates)

    def _at(self, at: float, act: Callable[..., None], *args: object) -> None:
        self._world.loop.call_at(at, act, *args)


def _without_other_gates(pod: Object) -> None:
    gates = pod["spec"].get("schedulingGates", ())
    pod["spec"]["schedulingGates"] = [gate for gate in gates if gate["name"] == names.GATE]


def _touched(pod: Object) -> None:
    notes = pod["metadata"].setdefault("annotations", {})
    notes["tenant.example.com/x"] = notes.get("tenant.example.com/x", "") + "x"
