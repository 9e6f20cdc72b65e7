"""What a decision costs and how long the loop is held: ``python -m tests.bench.controller [--nodes N] [--pods N]``.

The controller's worker in this process over an API server that answers at once and stores nothing, so that the figures
are the controller's own: 10,000 distinct waiting pods on 5,000 full nodes, then one node after another becomes free.
Then what a crowd in one namespace costs a pod of another: of pods whose scheduler is behind, or that all differ, or
gangs that fit nowhere.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec

from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.api.slices import resource_slices
from dradriver.cluster.records import pod_records, records, slice_records
from dradriver.controller.loop.worker import Worker
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.kube.client import ApiError, Client
from dradriver.kube.reflector import Change
from dradriver.process import cyclic_gc
from dradriver.topology import profiles

Object = dict[str, Any]
PATIENT = Deadlines(promise_s=3600.0)  # no placement is revoked, however slow the machine is
FREE_NODES = 20  # beside gangs of two pods for each


class NullClient:
    """Answers each write as the server would, and forgets it."""

    def __init__(self) -> None:
        self.writes = 0
        self.version = 1_000_000
        self.pods: dict[tuple[str, str], Object] = {}
        self.lifted: list[Object] = []
        self.seen: list[Object] = []  # those of them that were not bound
        self.created: dict[str, float] = {}  # when a claim was last asked for, by namespace

    async def create(self, _: object, obj: Object, *, namespace: str | None = None, type: Any = dict) -> Any:  # noqa: A002
        await asyncio.sleep(0)
        self.writes += 1
        self.created[namespace or ""] = time.perf_counter()
        self.version += 1
        extra = {"namespace": namespace, "uid": f"claim-{self.version}", "resourceVersion": str(self.version)}
        made = obj | {"metadata": obj["metadata"] | extra}
        return msgspec.json.decode(msgspec.json.encode(made), type=type)

    async def get(self, _: object, name: str, **__: Any) -> Any:
        await asyncio.sleep(0)
        raise ApiError(404, "NotFound", f"{name} not found")

    async def patch(self, _: object, name: str, body: Any, *, namespace: str, type: Any = dict, **__: Any) -> Any:  # noqa: A002
        await asyncio.sleep(0)
        self.writes += 1
        self.version += 1
        pod = self.pods[namespace, name]
        metadata = pod["metadata"] | {"resourceVersion": str(self.version)}
        lifted = hasattr(body, "ops")
        if not lifted:
            news = {k: v for k, v in body["metadata"]["annotations"].items() if v is not None}
            metadata = metadata | {"annotations": metadata["annotations"] | news}
        new = pod | {"metadata": metadata}
        if lifted:
            new = new | {"spec": new["spec"] | {"schedulingGates": []}}
            self.lifted.append(new)
        self.pods[namespace, name] = new
        return msgspec.json.decode(msgspec.json.encode(new), type=type)


def node(name: str) -> Object:
    """Return a node as the API has it."""
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {"kubernetes.io/hostname": name, "zone": f"z{hash(name) % 3}"},
        },
        "status": {
            "allocatable": {"cpu": "192", "memory": "2Ti", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(number: int, *, distinct: bool, gpus: int = 4) -> Object:
    """Return a gated pod as the webhook leaves it."""
    note = resolved.write(resolved.resolve(Annotations({names.POLICY: "nvlink"}), {"main": gpus}))
    asks = {"cpu": f"{1000 + number % 10_000}m" if distinct else "1"}
    return {
        "metadata": {
            "name": f"p{number}",
            "namespace": f"ns-{number % 50}",
            "uid": f"pod-{number}",
            "resourceVersion": "1",
            "creationTimestamp": f"2026-01-01T00:{number // 60 % 60:02d}:{number % 60:02d}Z",
            "labels": {names.LABEL: names.LABEL_PLACED},
            "annotations": {names.REQUEST: note},
        },
        "spec": {
            "schedulingGates": [{"name": names.GATE}],
            "resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimName": f"gpus-p{number}"}],
            "containers": [{"name": "main", "resources": {"requests": asks}}],
        },
        "status": {"phase": "Pending"},
    }


class Held:
    """How long the loop was held at most, by a task that wants to run all the time."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - last)
            last = now


def raw_nodes(count: int) -> list[tuple[msgspec.Raw, msgspec.Raw]]:
    """Return nodes of eight GPUs and their slices, as the API sends them."""
    machine = profiles.load("dgx-h100", seed="n")
    gpus = tuple(msgspec.structs.replace(gpu, uuid=f"GPU-number-{gpu.index}") for gpu in machine.gpus)
    (piece,) = resource_slices.build(msgspec.structs.replace(machine, gpus=gpus), node="the-node", node_uid="u")
    piece["metadata"] |= {"uid": "the-node", "resourceVersion": "1"}
    texts = [msgspec.json.encode(obj).decode() for obj in (node("the-node"), piece)]
    found = []
    for number in range(count):
        own = [t.replace("the-node", f"node-{number:05d}").replace("-number-", f"-{number:05d}-") for t in texts]
        first, second = (msgspec.Raw(text.replace("-number-", f"-{number:05d}-").encode()) for text in own)
        found.append((first, second))
    return found


def fill(worker: Worker, raw: list[tuple[msgspec.Raw, msgspec.Raw]]) -> None:
    """Bring nodes into the picture."""
    for one, piece in raw:
        found, read = records.read_node(one), slice_records.read_slice(piece)
        assert read is not None
        worker.picture.node_changed(Change(("", found.metadata.name), None, found))
        worker.picture.slice_changed(Change(("", read.metadata.name), None, read))


def bring(worker: Worker, client: NullClient, obj: Object) -> None:
    """Let the pods' reflector see a pod."""
    key = obj["metadata"]["namespace"], obj["metadata"]["name"]
    client.pods[key] = obj
    read = pod_records.read(msgspec.Raw(msgspec.json.encode(obj)))
    worker.picture.pod_changed(Change(key, None, read))


async def measure(nodes: int, waiting: int) -> None:
    """Print the figures for so many nodes."""
    client = NullClient()
    worker = Worker(cast("Client", client), deadlines=PATIENT)
    worker.begin()
    raw = raw_nodes(nodes)
    began = time.perf_counter()
    fill(worker, raw)
    _ = worker.picture.inventory.fleet
    cyclic_gc.settle()  # as the controller does once its picture is whole
    print(f"{nodes} nodes: picture made in {time.perf_counter() - began:.2f} s", flush=True)
    placed = nodes * 2
    some = min(400, placed)
    for number in range(some):
        bring(worker, client, pod(number, distinct=False))
    began = time.process_time()
    await drive(worker, client)
    print(f"  {some} alike pods placed: {(time.process_time() - began) / some * 1e3:.2f} ms CPU a pod, no network")
    for number in range(some, placed):
        bring(worker, client, pod(number, distinct=False))
    await drive(worker, client)
    for number in range(placed, placed + waiting):
        bring(worker, client, pod(number, distinct=True))
    held, began = Held(), time.perf_counter()
    await drive(worker, client)
    print(
        f"  {waiting} distinct pods find no place: {time.perf_counter() - began:.2f} s, "
        f"loop held at most {held.longest_s * 1e3:.0f} ms"
    )
    for round_ in range(3):
        name = f"node-{round_:05d}"
        mine = [c for c in worker.picture.claims.values() if c.pin is not None and c.pin.choice.node == name]
        held.longest_s, began, writes = 0.0, time.perf_counter(), client.writes
        for claim in mine[:1]:
            assert claim.owners
            key = claim.key[0], claim.owners[0][0]
            worker.picture.pod_changed(Change(key, worker.picture.pods[key], None))
            worker.picture.claim_changed(Change(claim.key, claim, None))
        while client.writes == writes:
            await drive(worker, client)
            await asyncio.sleep(0.001)
        claim_ms, took_ms = ((at - began) * 1e3 for at in (max(client.created.values()), time.perf_counter()))
        while worker.rechecks_due:  # the others are asked in vain
            await drive(worker, client)
            await asyncio.sleep(0.001)
        print(
            f"  four GPUs become free: a claim after {claim_ms:.0f} ms, "
            f"{client.writes - writes} writes in {took_ms:.0f} ms, "
            f"loop held at most {held.longest_s * 1e3:.0f} ms"
        )
    held.task.cancel()
    await starts(worker, client, nodes)
    print(f"  RSS at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB", flush=True)


async def starts(worker: Worker, client: NullClient, nodes: int) -> None:
    """Let 1,000 pods of other people's come, be bound to GPU nodes, run, and end, five events each."""
    stages: list[Object] = [
        {"spec": {}, "status": {"phase": "Pending"}},
        {"spec": {"nodeName": "x"}, "status": {"phase": "Pending"}},
        {"spec": {"nodeName": "x"}, "status": {"phase": "Running"}},
        {"spec": {"nodeName": "x"}, "status": {"phase": "Succeeded"}},
    ]
    began, count = time.process_time(), 1000
    for number in range(count):
        key, old = ("others", f"o{number}"), None
        for version, stage in enumerate(stages):
            containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
            own = {"nodeName": f"node-{number % nodes:05d}"} if stage["spec"] else {}
            metadata = {"name": key[1], "namespace": key[0], "uid": key[1], "resourceVersion": str(version)}
            obj = {"metadata": metadata, "spec": own | {"containers": containers}, "status": stage["status"]}
            new = pod_records.read(msgspec.Raw(msgspec.json.encode(obj)))
            if old is not None or new is not None:
                worker.picture.pod_changed(Change(key, old, new))
            old = new
            await worker.turn()
    spent = (time.process_time() - began) / count
    print(f"  100 starts a second of other people's pods: {spent * 1e4:.1f} % of a core, decoding included")


async def parked(nodes: int, waiting: int) -> None:
    """Print what pods whose scheduler is behind cost a pod of another namespace, and each other."""
    worker, client = full(nodes, fill_with=0)
    for number in range(waiting):
        bring(worker, client, theirs(pod(number, distinct=False, gpus=1), "crowd"))
    await drive(worker, client, bind=lambda _: False)
    client.lifted, client.seen = client.seen[:20], client.seen[20:]
    await drive(worker, client, once=True)
    bring(worker, client, theirs(pod(waiting, distinct=False, gpus=1), "other"))
    began = time.perf_counter()
    await drive(worker, client, bind=lambda _: False)
    print(f"  {waiting} pods wait for their scheduler: another's is placed in {ms(client, began)}")
    lifted, client.seen = client.seen, []
    began_cpu, writes = time.process_time(), client.writes
    while lifted:
        client.lifted, lifted = lifted[:20], lifted[20:]
        await drive(worker, client, once=True)
        await drive(worker, client, bind=lambda _: False)
        lifted += client.seen
        client.seen = []
    spent_ms = (time.process_time() - began_cpu) * 1e3
    print(
        f"  and {(client.writes - writes) // 2} more as these are bound: {spent_ms / max(1, waiting):.2f} ms CPU a pod"
    )


async def different(nodes: int, waiting: int) -> None:
    """Print how long a pod waits once a node is free, beside older ones of another namespace that all differ."""
    worker, client = full(nodes, fill_with=8)
    await drive(worker, client)
    for number in range(nodes, nodes + waiting):
        racks = [f"{number}-{rack}" for rack in range(900)]
        terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": racks}]}]
        obj = theirs(pod(number, distinct=False, gpus=8), "crowd")
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        bring(worker, client, obj | {"spec": obj["spec"] | {"affinity": {"nodeAffinity": required}}})
    bring(worker, client, theirs(pod(nodes + waiting, distinct=False, gpus=8), "other"))
    await drive(worker, client)
    client.created.clear()
    claim = next(iter(worker.picture.claims.values()))
    key = claim.key[0], claim.owners[0][0]
    began = time.perf_counter()
    worker.picture.pod_changed(Change(key, worker.picture.pods[key], None))
    worker.picture.claim_changed(Change(claim.key, claim, None))
    while "other" not in client.created:
        await drive(worker, client)
        await asyncio.sleep(0.001)
    print(
        f"  {waiting} different pods wait: another's is placed in {ms(client, began)} once a node is free", flush=True
    )


async def costly(nodes: int, gangs: int) -> None:
    """Print how long a pod waits beside gangs of a tenant who has had nothing yet that all differ and fit nowhere."""
    worker, client = full(nodes, fill_with=0)
    worker.picture.barrier = True
    worker.follow(Policies(tenants={name: Tenant(namespaces=(name,)) for name in ("crowd", "other")}))
    worker.tenants.shares.restart({"other": 1e6}, {})
    for number in range(2 * nodes - 2 * FREE_NODES):
        bring(worker, client, theirs(pod(number, distinct=False), "other"))
    await drive(worker, client)
    for number in range(gangs * 2 * FREE_NODES):
        gang, rank = divmod(number, 2 * FREE_NODES)
        obj = theirs(pod(nodes * 2 + number, distinct=False, gpus=7), "crowd")
        words = {names.GANG: f"gang-{gang}", names.GANG_SIZE: str(2 * FREE_NODES)}
        cpu = {"resources": {"requests": {"cpu": f"{1000 + gang + rank % 32}m"}}}
        note = resolved.write(resolved.resolve(Annotations(words), {"main": 7}))
        obj["metadata"]["annotations"] = {names.REQUEST: note, **words}
        bring(worker, client, obj | {"spec": obj["spec"] | {"containers": [{"name": "main"} | cpu]}})
    bring(worker, client, theirs(pod(nodes * 2 + gangs * 2 * FREE_NODES, distinct=False), "other"))
    client.created.clear()
    began = time.perf_counter()
    await drive(worker, client)
    print(
        f"  {gangs} gangs that fit nowhere wait: another's is placed in {ms(client, began)}; "
        f"all are looked at in {time.perf_counter() - began:.2f} s",
        flush=True,
    )


def full(nodes: int, *, fill_with: int) -> tuple[Worker, NullClient]:
    """Return a worker with so many nodes, and a waiting pod of so many GPUs for each, if any."""
    client = NullClient()
    worker = Worker(cast("Client", client), deadlines=PATIENT)
    worker.begin()
    fill(worker, raw_nodes(nodes))
    for number in range(nodes if fill_with else 0):
        bring(worker, client, pod(number, distinct=False, gpus=fill_with))
    return worker, client


def theirs(obj: Object, namespace: str) -> Object:
    """Return a pod as one of another namespace."""
    return obj | {"metadata": obj["metadata"] | {"namespace": namespace}}


def ms(client: NullClient, began: float) -> str:
    """Return how long after a time the claim of the other namespace's pod was asked for."""
    return f"{(client.created['other'] - began) * 1e3:.0f} ms"


async def drive(
    worker: Worker, client: NullClient, *, bind: Callable[[Object], bool] = lambda _: True, once: bool = False
) -> None:
    """Let the worker act until it has nothing more to do, without reasons; lifted pods are bound at once, or some."""
    while True:
        if not once:
            await worker.turn()
        for obj in client.lifted:
            if not bind(obj):
                client.seen.append(obj)
                continue
            key = obj["metadata"]["namespace"], obj["metadata"]["name"]
            claim = worker.picture.claims[key[0], f"gpus-{key[1]}"]
            assert claim.pin is not None
            client.version += 1
            metadata = obj["metadata"] | {"resourceVersion": str(client.version)}
            bound = obj | {"metadata": metadata, "spec": obj["spec"] | {"nodeName": claim.pin.choice.node}}
            read = pod_records.read(msgspec.Raw(msgspec.json.encode(bound)))
            worker.picture.pod_changed(Change(key, worker.picture.pods[key], read))
        client.lifted = []
        if once or not worker.busy:
            return
        await asyncio.sleep(0)


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.controller")
    options.add_argument("--nodes", type=int, nargs="*", default=[200, 1000, 5000])
    options.add_argument("--pods", type=int, default=10_000, help="that wait, all different")
    given = options.parse_args()
    for count in given.nodes:
        asyncio.run(measure(count, given.pods))
    for count in given.nodes:
        print(f"{count} nodes:")
        asyncio.run(parked(count, min(5000, count * 8 - 1)))
        asyncio.run(different(count, 3000))
        asyncio.run(costly(count, 20))


if __name__ == "__main__":
    main()
