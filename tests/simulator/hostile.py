"""Objects that anybody may create, and that nobody's controller may stumble over."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from dradriver.api.base import names
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apistore import Object
from tests.simulator import cast
from tests.simulator.world import World

DEEP: Final = "[" * 20_000
DIGITS: Final = "9" * 5_000
VALUES: Final = (DIGITS, DEEP, "", "nonsense", '{"version":1}', '{"main":-1}', "\x00", "1e999", "é" * 300)
AMOUNTS: Final = ("9223372036854775807", "100E", "1e18", "0.5", "12e6", "1Ei", "-1")
WORDS: Final = ("min-memory", "policy", "request", "containers", "affinity", "allocated", "node", "reason", "unknown")


def annotated(world: World) -> None:
    """Somebody sets one of our annotations on a pod that waits to something that is none."""
    rng = world.rng
    waiting = world.existing(lambda pod: not pod["spec"].get("nodeName"))
    if waiting:
        key = rng.choice(waiting)
        world.spoiled.add(key)
        world.annotate(key, **{rng.choice(WORDS): rng.choice((*VALUES, None))})


def damaged_pod(world: World) -> None:
    """A pod of ours with notes that no webhook writes, as while it was away."""
    rng, name = world.rng, world.name("damaged")
    pod = cast.pod(name, "default", {"main": 2}, {})
    pod["metadata"]["annotations"] |= {names.PREFIX + rng.choice(WORDS): rng.choice(VALUES) for _ in range(2)}
    if rng.random() < 0.3:
        del pod["metadata"]["annotations"][names.REQUEST]
    world.server.put(PODS, pod)


def half_a_pod(world: World) -> None:
    """A pod with some of the marks of ours and not the others."""
    rng, name = world.rng, world.name("half")
    pod = cast.pod(name, "default", {"main": 1}, {})
    for part in rng.sample(("schedulingGates", "resourceClaims", "containers"), 2):
        pod["spec"][part] = []
    if rng.random() < 0.5:
        pod["metadata"]["labels"] = {}
    if rng.random() < 0.3:
        pod["spec"]["resourceClaims"] = [{"name": names.POD_CLAIM, "resourceClaimTemplateName": "template"}]
    world.server.put(PODS, pod)


def odd_pod(world: World) -> None:
    """Somebody else's pod with amounts, annotations and selectors that the API server admits."""
    rng = world.rng
    requests = {"cpu": rng.choice(AMOUNTS[:-1]), "example.com/thing": "3"}
    term = {"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["nonsense"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}, term]}}
    world.put_pod(
        world.name("odd"),
        metadata={"annotations": {"tenant.example.com/x": DEEP}, "labels": {names.LABEL: "other"}},
        containers=[{"name": "main", "resources": {"requests": requests}, "env": [{"name": "CUDA_" + DIGITS}]}],
        affinity={"nodeAffinity": required},
        schedulerName="nobody-knows",
        overhead={"cpu": "1m"},
        priority=2_000_001_000,
    )


def thief(world: World) -> None:
    """A pod that names another's claim: Kubernetes lets it share what the scheduler gave that one."""
    own = world.existing(lambda pod: pod["metadata"]["namespace"] == "default")
    if own:
        victim = world.rng.choice(own)
        world.spoiled.add(victim)
        world.put_pod(
            world.name("thief"), resourceClaims=[{"name": "x", "resourceClaimName": cast.claim_of(victim[1])}]
        )


def squatter(world: World) -> None:
    """A claim without our label under the name that a pod's claim has, or will have."""
    own = world.existing(lambda pod: bool(pod["spec"].get("schedulingGates")))
    if own:
        namespace, name = world.rng.choice(own)
        if world.server.find(RESOURCE_CLAIMS, cast.claim_of(name), namespace) is None:
            world.spoiled.add((namespace, name))
            _claim(world, cast.claim_of(name), namespace)


def odd_claim(world: World) -> None:
    """A claim of somebody's, without requests, or nested as deep as 10 KiB allow, or with odd devices."""
    rng = world.rng
    opaque = {"opaque": {"driver": names.DRIVER, "parameters": rng.choice(({}, {"order": {"main": ["0"]}}, _deep()))}}
    devices: Object = rng.choice(({}, {"requests": []}, {"requests": [], "config": [opaque, opaque]}))
    results = [
        {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "x"},
        {"request": "r", "driver": names.DRIVER, "pool": "nowhere", "device": "y", "shareID": "s"},
        {"request": "r", "driver": names.DRIVER, "pool": "n1", "device": "z", "adminAccess": True},
    ]
    status = {"allocation": {"devices": {"results": results}}} if rng.random() < 0.5 else {}
    _claim(world, world.name("claim"), "default", devices=devices, status=status)


def forged_claim(world: World) -> None:
    """A claim that looks like the controller's: only where no policy keeps tenants from creating such."""
    node = world.rng.choice(sorted(world.nodes))
    uuid = sorted(world.truth.listed(node))[:1]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "decoy", "uid": "decoy", "controller": True}
    choice = '{"kind":"whole","gpus":[0],"containers":[[0]],"ring":[0],"busbw_gbps":0,"bandwidth_gbps":0,"score":1'
    metadata: Object = {
        "labels": {names.LABEL: names.LABEL_PLACED},
        "annotations": {names.CHOICE: world.rng.choice((DEEP, choice + f',"level":"node","node":"{node}"}}'))},
        "ownerReferences": [owner] if world.rng.random() < 0.5 else [],
    }
    config = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIG_KIND, "order": {"main": uuid}}
    devices = {"requests": [], "config": [{"opaque": {"driver": names.DRIVER, "parameters": config}}]}
    _claim(world, world.name("forged"), "default", devices=devices, metadata=metadata)


def odd_slice(world: World) -> None:
    """Slices of strangers, of pools without nodes, of old generations, and with machines that are none."""
    rng = world.rng
    name = world.name("slice")
    pool: Object = {"name": name, "generation": rng.choice((0, 1, 2**62)), "resourceSliceCount": rng.choice((1, 3))}
    node: str | None = rng.choice((name, "elsewhere", None))
    if rng.random() < 0.3 and world.nodes:
        node = pool["name"] = rng.choice(sorted(world.nodes))  # left over: of before the newest
        pool["generation"] = 0
    devices = rng.choice(([], [{"name": "x"}], [{"name": "y", "attributes": {}, "taints": [{"key": "k"}]}]))
    spec: Object = {"driver": rng.choice((names.DRIVER, "gpu.example.com")), "pool": pool, "devices": devices}
    spec |= {"nodeName": node} if node is not None else {"allNodes": True}
    notes = {names.MACHINE: rng.choice((*VALUES, "{}"))}
    world.server.put(RESOURCE_SLICES, {"metadata": {"name": name, "annotations": notes}, "spec": spec})


def odd_node(world: World) -> None:
    """A node that says nothing of itself, or has amounts that nobody has."""
    rng = world.rng
    node: Object = {"metadata": {"name": world.name("node")}, "spec": {}}
    if rng.random() < 0.5:
        node["status"] = {"allocatable": {"cpu": rng.choice(AMOUNTS), "example.com/x": rng.choice(AMOUNTS)}}
    world.server.put(NODES, node)


def unmarked(world: World) -> None:
    """Somebody takes our label from a pod, or takes its gate away: that is theirs to do."""
    waiting = world.existing(lambda pod: bool(pod["spec"].get("schedulingGates")))
    if not waiting:
        return
    key = world.rng.choice(waiting)
    world.spoiled.add(key)
    if world.rng.random() < 0.5:
        world.server.edit(PODS, key, lambda pod: pod["metadata"].pop("labels", None))
    else:
        world.server.edit(PODS, key, lambda pod: pod["spec"].pop("schedulingGates", None))
    world.trace("pod %s/%s loses its label or its gate", *key)


ALL: Final[tuple[Callable[[World], None], ...]] = (
    annotated, damaged_pod, half_a_pod, odd_pod, thief, squatter, odd_claim, odd_slice, odd_node, unmarked,
)  # fmt: skip


def any_of(world: World, rng: random.Random) -> None:
    """Do one of all that is bad."""
    act = rng.choice(ALL)
    world.trace("hostile: %s", act.__name__)
    act(world)


def _deep() -> Object:
    found: Object = {}
    for _ in range(300):
        found = {"x": found}
    return found


def _claim(
    world: World,
    name: str,
    namespace: str,
    *,
    devices: Object | None = None,
    status: Object | None = None,
    metadata: Object | None = None,
) -> None:
    head = {"name": name, "namespace": namespace} | (metadata or {})
    world.server.put(RESOURCE_CLAIMS, {"metadata": head, "spec": {"devices": devices or {}}, "status": status or {}})
