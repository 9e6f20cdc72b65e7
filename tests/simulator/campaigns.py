"""What somebody goes on doing in a story, a tenant, an administrator, a stolen token or the server: each by its name.

Good pods are among what each of them does, and wait for nobody: what they may expect stands in ``liveness``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.fields import Gpus
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tests.fakes.apistore import Object
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.devices import results
from tests.resources import DEVICE_TAINT_RULES
from tests.simulator import cast, machines
from tests.simulator.adversaries import Adversaries
from tests.simulator.faults import ETCD, QUOTA_CONFLICT, Storm
from tests.simulator.gang_life import GangLife
from tests.simulator.idle_rules import IdleRules
from tests.simulator.idling import Idling
from tests.simulator.partition_rules import FOLLOWED_S
from tests.simulator.preempting import contested
from tests.simulator.reserving import Reserving
from tests.simulator.world import Node, World

HALF: Final = msgspec.Raw(b'"\\ud800"')  # the API server keeps it, and no strict reader takes it
HANDS: Final = "by-hand"
FAT: Final = 40  # templates
ROUNDS: Final = 6  # in which something is written anew, one a second

TABLES_S: Final = 3.0  # until the tables of a machine may be there, counted from a second after it came


def nulls(world: World, rng: random.Random, at: float) -> None:
    """Claims, templates and slices in which Go wrote null for a list, or for an object."""
    devices: Object = {"requests": None, "constraints": None, "config": None}
    allocated: Object = {"allocation": {"devices": {"results": None, "config": None}}, "reservedFor": None}
    _put(world, at, RESOURCE_CLAIMS, {"spec": {"devices": devices}})
    _put(world, at, RESOURCE_CLAIMS, {"spec": {"devices": devices}, "status": allocated | {"devices": None}})
    _put(world, at, RESOURCE_CLAIMS, {"spec": {"devices": None}, "status": {"allocation": None}})
    _put(world, at, RESOURCE_CLAIM_TEMPLATES, {"spec": {"metadata": None, "spec": {"devices": devices}}})
    pool = {"name": "nowhere", "generation": 1, "resourceSliceCount": 1}
    device = {"name": "x", "attributes": None, "capacity": None, "taints": None}
    for listed in (None, [device]):
        spec = {"driver": names.DRIVER, "nodeName": "nowhere", "pool": pool, "devices": listed}
        _put(world, at, RESOURCE_SLICES, {"spec": spec}, namespace=None)


def surrogates(world: World, rng: random.Random, at: float) -> None:
    """Half a letter in another driver's parameters, and in what it says in a status of a claim with GPUs of ours."""
    parameters = {"opaque": {"driver": "other.example.com", "parameters": {"a": HALF}}}
    devices: Object = {"requests": [], "config": [parameters]}
    _put(world, at, RESOURCE_CLAIMS, {"spec": {"devices": devices}})
    _put(world, at, RESOURCE_CLAIM_TEMPLATES, {"spec": {"spec": {"devices": devices}}})

    def told() -> None:
        for claim in world.server.all(RESOURCE_CLAIMS):
            for result in results(claim)[:1]:
                entry = {key: result[key] for key in ("driver", "pool", "device")} | {"data": {"a": HALF}}
                world.server.put(RESOURCE_CLAIMS, claim | {"status": claim["status"] | {"devices": [entry]}})

    world.loop.call_at(at, world.take, rng.choice(list(world.nodes.values())), 1)
    for turn in range(ROUNDS):
        world.loop.call_at(at + turn, told)


def bound_by_hand(world: World, rng: random.Random, at: float) -> None:
    """Pods for a scheduler that nobody knows, bound once they are lifted, without their claims being allocated."""
    pods = [world.name(HANDS) for _ in range(2)]
    for name in pods:
        world.loop.call_at(at, world.add_pod, cast.pod(name, "default", {"main": 1}, {}, schedulerName="nobody-knows"))

    def bind() -> None:
        for name in pods:
            pod = world.pod(("default", name))
            if pod is not None and not fit.gates(pod) and not pod["spec"].get("nodeName"):
                claim = world.server.find(RESOURCE_CLAIMS, fit.claim_names(pod)[0], "default")
                choice = "{}" if claim is None else fit.notes_of(claim).get(names.CHOICE, "{}")
                node = json.loads(choice).get("node") or min(world.nodes)
                world.trace("pod %s is bound to %s by hand", name, node)
                status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
                world.server.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": node}, "status": status})

    for turn in range(ROUNDS):
        world.loop.call_at(at + 1 + turn, bind)


def forged_notes(world: World, rng: random.Random, at: float) -> None:
    """A note that grows by way of a pod's status, where no admission policy keeps it."""

    def forge() -> None:
        waiting = world.existing(lambda pod: len(pod["spec"]["containers"]) == 1 and bool(fit.gates(pod)))
        if waiting:
            key = rng.choice(waiting)
            world.spoiled.add(key)
            (container,) = (world.pod(key) or {})["spec"]["containers"]
            world.annotate(key, request=resolved.write(resolved.resolve(Annotations({}), {container["name"]: 8})))

    for turn in range(ROUNDS):
        world.loop.call_at(at + turn, forge)


def etcd_timeouts(world: World, rng: random.Random, at: float) -> None:
    """Writes of whoever it be that etcd does not answer in time, for some seconds."""
    rate, until = rng.choice((0.3, 0.9)), at + rng.uniform(1, 6)
    world.plan.storms.append(Storm(at, until, random.Random(rng.random()), rate, ETCD))


def queue_in_trouble(world: World, rng: random.Random, at: float) -> None:
    """Pods of one kind for whom one GPU after the other becomes free, while etcd or a quota lets many writes down."""
    node = Node("q1", "rtx-a6000-x4-pairs", zone="q")
    world.add_node(node)
    gpus = len(world.truth.listed(node.name))
    claims = [world.take(node, 1) for _ in range(gpus)]
    world.plan.spared.add("queue")
    for number in range(gpus):
        key = "queue", f"queue-{number}"
        world.queue.append(key)
        pod = cast.pod(key[1], key[0], {"main": 1}, {}, nodeSelector={"zone": "q"})
        world.loop.call_at(at + number / 10, world.add_pod, pod)
        world.loop.call_at(at + 2 + number, world.server.remove, RESOURCE_CLAIMS, ("default", claims[number]))
    chance = random.Random(rng.random())
    storm = rng.choice(
        (
            Storm(at + 1, at + 5, chance, 0.7, ETCD),
            Storm(at + 1, at + 5, chance, 0.7, QUOTA_CONFLICT, "create", RESOURCE_CLAIMS.plural),
        )
    )
    world.plan.storms.append(storm)


def quota_conflicts(world: World, rng: random.Random, at: float) -> None:
    """Claims of a namespace that its quota is too busy for."""
    claims = RESOURCE_CLAIMS.plural
    storm = Storm(at, at + 5, random.Random(rng.random()), 0.7, QUOTA_CONFLICT, "create", claims, "default")
    world.plan.storms.append(storm)


def fat_templates(world: World, rng: random.Random, at: float) -> None:
    """Templates that take long to be read and are replaced all the time; and a pod of a small one among theirs."""
    plain = _template("plain", "default", 1)
    world.loop.call_at(at, world.server.put, RESOURCE_CLAIM_TEMPLATES, plain)
    world.loop.call_at(at + ROUNDS / 2, world.add_pod, _by_template("plain-1", "default", "plain"))
    world.plan.heavy["fat"] = 0.7
    for number in range(FAT):
        pod = _by_template(f"fat-{number}", "fat", f"fat-{number}")
        world.spoiled.add(("fat", pod["metadata"]["name"]))
        world.loop.call_at(at, world.add_pod, pod)

    def replace() -> None:
        for number in range(FAT):
            world.server.remove(RESOURCE_CLAIM_TEMPLATES, ("fat", f"fat-{number}"))
            world.server.put(RESOURCE_CLAIM_TEMPLATES, _template(f"fat-{number}", "fat", 64))

    for turn in range(ROUNDS):
        world.loop.call_at(at + turn, replace)


def shapes(world: World, rng: random.Random, at: float) -> None:
    """A node whose machine is another one every second, linked as none before."""
    node = rng.choice(list(world.nodes.values()))

    def rewire() -> None:
        node.wiring = rng.randint(1, machines.WIRINGS)
        if node.name in world.truth.pools:
            world.publish(node)

    for turn in range(ROUNDS):
        world.loop.call_at(at + turn, rewire)
    world.loop.call_at(at, world.truth.aside.add, node.name)
    world.loop.call_at(at + ROUNDS + TABLES_S, world.truth.come_back, node.name)


def taint_rules(world: World, rng: random.Random, at: float) -> None:
    """An administrator's rules keep new claims off some GPUs, and end."""
    node = rng.choice(list(world.nodes.values()))
    gpus = sorted({home.gpu for home in world.truth.homes.values() if home.gpu[0] == node.name})
    for pool, device in rng.sample(gpus, rng.randint(1, len(gpus))):
        name = world.name("rule")
        world.loop.call_at(at, world.rule, name, pool, device)
        if rng.random() < 0.5:
            world.loop.call_at(at + rng.uniform(1, 30), world.server.remove, DEVICE_TAINT_RULES, ("", name))


def apart(world: World, rng: random.Random, at: float) -> None:
    """A set of pods that want a host each, and one whom the scheduler refuses all nodes but one for ever."""
    for number in range(8):
        world.add_node(Node(f"m{number + 1}", "rtx-a6000-x4-pairs"))
    group = rng.choice(("default", "team-a")), "apart"
    term = {"labelSelector": {"matchLabels": {"app": group[1]}}, "topologyKey": "kubernetes.io/hostname"}
    required = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for number in range(6):
        pod = cast.pod(f"apart-{number}", group[0], {"main": 1}, {"product": "NVIDIA RTX A6000"}, affinity=required)
        pod["metadata"]["labels"]["app"] = group[1]
        world.loop.call_at(at + rng.uniform(0, 3), world.add_pod, pod)
    picky = ("default", "picky")
    world.scheduler.refused[picky] = frozenset(world.nodes) - {"m8"}
    world.loop.call_at(at, world.add_pod, cast.pod(picky[1], picky[0], {"main": 1}, {}))


def open_pods(world: World, rng: random.Random, at: float) -> None:
    """Pods with a rule that only the scheduler can evaluate, which leaves each of them one node or two."""
    for number in range(rng.randint(2, 10)):
        world.add_node(Node(f"m{number + 1}", "rtx-a6000-x4-pairs"))
    term = {
        "labelSelector": {"matchLabels": {"app": "none"}},
        "namespaceSelector": {"matchLabels": {"team": "none"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    rule = {"podAntiAffinity": {fit.REQUIRED: [term]}}
    for number in range(rng.randint(1, 12)):
        name, namespace = f"open-{number}", rng.choice(("default", "team-a"))
        policy = rng.choice(("PreemptLowerPriority", "Never"))
        pod = cast.pod(name, namespace, {"main": 1}, {}, affinity=rule, preemptionPolicy=policy)
        allowed = rng.sample(sorted(world.nodes), rng.randint(1, 2))
        world.scheduler.refused[namespace, name] = frozenset(world.nodes).difference(allowed)
        world.loop.call_at(at + rng.uniform(0, 10), world.add_pod, pod)


def gangs(world: World, rng: random.Random, at: float) -> None:
    """Gangs in a cluster whose scheduler waits for seats, as from 1.36 on."""
    GangLife(world, rng).begin(barrier=True)


def gangs_before(world: World, rng: random.Random, at: float) -> None:
    """Gangs in a cluster without seats."""
    GangLife(world, rng).begin(barrier=False)


def gangs_owned(world: World, rng: random.Random, at: float) -> None:
    """Small gangs of Jobs that lose pods and are started anew, with seats or without, and whoever leads is killed."""
    GangLife(world, rng).begin(barrier=rng.random() < 0.6, owned=True)


def partitions(world: World, rng: random.Random, at: float) -> None:
    """Tenants with GPUs of their own, divided anew as time goes by; a gang or a few among whoever waits."""
    for node in world.nodes.values():
        node.pool = rng.choice(("red", "blue"))
        world.show_node(node)
    if rng.random() < 0.5:
        GangLife(world, rng).begin(barrier=rng.random() < 0.6)

    def tenant(*namespaces: str) -> Tenant:
        rule = Gpus(
            nodes=tuple(rng.sample(sorted(world.nodes), 1)) if rng.random() < 0.2 else (),
            node_selector={"pool": rng.choice(("red", "blue"))} if rng.random() < 0.5 else {},
            products=(rng.choice(("*RTX*", "NVIDIA H100*", "*")),) if rng.random() < 0.3 else (),
            numbers=tuple(sorted(rng.sample(range(8), 4))) if rng.random() < 0.5 else (),
        )
        kueue: Literal["", "kueue"] = "kueue" if rng.random() < 0.3 else ""
        return Tenant(namespaces=namespaces, partition=rule, exclusive=rng.random() < 0.5, admission=kueue)

    def divide() -> None:
        tenants = {"red": tenant("default"), "blue": tenant("team-a", "team-g")}
        if rng.random() < 0.3:
            tenants.pop(rng.choice(("red", "blue")))
        world.trace("partitions: %s", tenants)
        world.health.trouble(FOLLOWED_S)
        world.partitions.write(tenants)
        world.truth.revision += 1  # what the server's version does not tell

    def repaint() -> None:
        node = rng.choice(list(world.nodes.values()))
        node.pool = "red" if node.pool == "blue" else "blue"
        world.health.trouble(3.0)
        world.show_node(node)

    divide()
    for _ in range(rng.randint(0, 3)):
        world.loop.call_at(at + rng.uniform(0, ROUNDS), rng.choice((divide, repaint)))


def caps(world: World, rng: random.Random, at: float) -> None:
    """Tenants with caps, which an administrator changes."""
    world.caps.begin(rng)


def caps_gangs(world: World, rng: random.Random, at: float) -> None:
    """The same with gangs, with seats or without."""
    world.caps.begin(rng)
    GangLife(world, rng).begin(barrier=rng.random() < 0.6)


def reservations(world: World, rng: random.Random, at: float) -> None:
    """Small pods, some of which say when they end, pass by large ones, for whom GPUs are reserved."""
    Reserving(world, rng).begin()


def preempting(world: World, rng: random.Random, at: float) -> None:
    """Pods and gangs of several priorities on few GPUs, where others end for them; budgets; policies that change."""
    contested(world, rng)
    GangLife(world, rng).begin(barrier=rng.random() < 0.7, owned=rng.random() < 0.3)


def adversaries(world: World, rng: random.Random, at: float) -> None:
    """Decoys with budgets, an owner of many pods, and others that use up the evictions of a minute; leaders change."""
    Adversaries(world, rng).begin()


def idle(world: World, rng: random.Random, at: float) -> None:
    """Pods and Jobs that ask to be ended when their GPUs do nothing, agents that say so or go wrong, and budgets."""
    life = Idling(world, rng)
    life.begin(jobs=rng.random() < 0.7)
    IdleRules(world, life.agents, ends=life.ends)


def idle_gangs(world: World, rng: random.Random, at: float) -> None:
    """The same with gangs, of Jobs or of nothing."""
    life = Idling(world, rng)
    life.begin(jobs=False)
    IdleRules(world, life.agents, ends=life.ends)
    GangLife(world, rng).begin(barrier=rng.random() < 0.7, owned=rng.random() < 0.7, idle_s=rng.choice((1, 5, 15)))


def idle_preempting(world: World, rng: random.Random, at: float) -> None:
    """The same where others end for those of a higher priority, too."""
    contested(world, rng)
    idle_gangs(world, rng, at)


Campaign = Callable[[World, random.Random, float], None]
CAMPAIGNS: Final[dict[str, Campaign]] = {
    campaign.__name__: campaign
    for campaign in (
        nulls, surrogates, bound_by_hand, forged_notes, etcd_timeouts, quota_conflicts, queue_in_trouble, fat_templates,
        shapes, taint_rules, apart, open_pods, gangs, gangs_before, gangs_owned, partitions, caps, caps_gangs,
        reservations, preempting, adversaries, idle, idle_gangs, idle_preempting,
    )
}  # fmt: skip


# Drawn by chance; the others are asked for by name.
# Of ``queue_in_trouble`` see there what does not hold yet; other stories stay what they are without the rest.
LATER: Final = (
    "queue_in_trouble",
    "open_pods",
    "gangs_owned",
    "reservations",
    "preempting",
    "adversaries",
    "idle",
    "idle_gangs",
    "idle_preempting",
)
BY_TENANTS: Final = ("partitions", "caps", "caps_gangs")
DRAWN: Final = tuple(name for name in CAMPAIGNS if name not in (*LATER, *BY_TENANTS))


def _put(world: World, at: float, resource: Resource, obj: Object, *, namespace: str | None = "default") -> None:
    head = {"name": world.name("odd")} | ({} if namespace is None else {"namespace": namespace})
    world.loop.call_at(at, world.server.put, resource, {"metadata": head} | obj)


def _template(name: str, namespace: str, count: int) -> Object:
    exactly = {"deviceClassName": names.DEVICE_CLASS, "count": count}
    spec = {"spec": {"devices": {"requests": [{"name": "main", "exactly": exactly}]}}}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _by_template(name: str, namespace: str, template: str) -> Object:
    """Return what the webhook makes of a pod whose claim, of one GPU, is made from a template."""
    pod = cast.pod(name, namespace, {"main": 1}, {})
    pod["metadata"]["annotations"][names.TEMPLATE] = f"gpus/{template}"
    pod["spec"]["resourceClaims"][0]["name"] = "gpus"
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
    return pod
