"""What each write that a pod needs costs the API server: many writes of one kind, and nothing else at the time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dradriver.api.base import names
from dradriver.kube.client import Client, PatchKind
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.bench.throughput import usage
from tests.bench.throughput.crowd import crowd
from tests.bench.throughput.stage import Stage
from tests.bench.throughput.watching import watching
from tests.bench.throughput.workloads import NAMESPACE, OURS
from tests.cluster.errors import ClusterError

_WAIT_S = 60
_AT_ONCE = 8
_GATED = "example.com/measured"  # keeps the scheduler away from what is measured
_OWN = frozenset({"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"})  # of one object

# The largest objects that a tenant may write: policies see them whole.
_LONG = "x" * 250_000
_LONG_ENVIRONMENT = [{"name": f"V{number}", "value": "y" * 2500} for number in range(100)]
_MANY_REQUESTS = [
    {
        "name": f"r{number}",
        "firstAvailable": [{"name": f"a{each}", "deviceClassName": "other.example.com"} for each in range(8)],
    }
    for number in range(32)
]

Object = dict[str, Any]
Step = Callable[[int], Awaitable[object]]


async def writes(stage: Stage, variant: str, count: int) -> list[dict[str, Any]]:
    """Return what each kind of write costs: CPU milliseconds of each process, and milliseconds of time.

    What is written is what the driver wrote for a first pod. The controller does not run meanwhile, and all pods stay
    gated, so that nobody answers with writes of his own.
    """
    driver = stage.drivers[variant]
    await stage.install(driver)
    async with driver.running("webhook"):
        async with driver.running("controller"):
            pod, claim = await _model(stage)
        await stage.clear()
        await stage.quiet()
        async with Client(from_kubeconfig(driver.kubeconfig("controller")), user_agent="writes") as controller:
            found = []
            for what, step in _steps(stage, controller, pod, claim).items():
                await step(-1)
                used, begun = usage.Usage(stage.pids()), time.monotonic()
                await crowd(step, range(count), at_once=_AT_ONCE)
                spent, took_s = used.spent(), time.monotonic() - begun
                costs = {part: 1000 * seconds / count for part, seconds in spent.items()}
                found.append({"variant": variant, "write": what, "cpu_ms": costs, "ms": 1000 * took_s / count})
        await stage.clear()
    return found


async def _model(stage: Stage) -> tuple[Object, Object]:
    """Return a pod as the driver placed it, and its claim."""
    async with watching(stage.client) as seen:
        await stage.create(stage.works(OURS, "model", 1))
        if not await seen.until(lambda: bool(seen.bound), seconds=_WAIT_S):
            raise ClusterError(f"the driver did not place its first pod in {_WAIT_S} s")
    (pod,), _ = await stage.client.list(PODS, namespace=NAMESPACE)
    (claim,), _ = await stage.client.list(RESOURCE_CLAIMS, namespace=NAMESPACE)
    return pod, claim


def _steps(stage: Stage, controller: Client, pod: Object, claim: Object) -> Mapping[str, Step]:
    """Return the writes in the order in which a pod meets them; each is made for pods of numbers from -1 on."""
    (sent,) = (dict(work.pod) for work in stage.works(OURS, "measured", 1))
    gated = sent["spec"] | {"schedulingGates": [{"name": _GATED}]}
    notes = {
        key: value
        for key, value in pod["metadata"]["annotations"].items()
        if key not in sent["metadata"]["annotations"]
    }
    lifted = {
        "metadata": {"annotations": notes},
        "spec": {"affinity": pod["spec"]["affinity"], "schedulingGates": gated["schedulingGates"]},
    }

    uids: dict[str, str] = {}  # of our pods, by their names

    async def plain(number: int) -> None:
        metadata = {"name": f"plain-{number}", "namespace": NAMESPACE}
        containers = [{**each, "resources": {}} for each in gated["containers"]]
        await stage.client.create(PODS, sent | {"metadata": metadata, "spec": gated | {"containers": containers}})

    async def ours(number: int) -> None:
        metadata = sent["metadata"] | {"name": f"ours-{number}"}
        made = await stage.client.create(PODS, sent | {"metadata": metadata, "spec": gated})
        uids[made["metadata"]["name"]] = made["metadata"]["uid"]

    async def pinned(number: int) -> None:
        name = f"ours-{number}"
        owners = [owner | {"name": name, "uid": uids[name]} for owner in claim["metadata"]["ownerReferences"]]
        metadata = {key: value for key, value in claim["metadata"].items() if key not in _OWN}
        metadata |= {"name": f"{names.CLAIM_PREFIX}measured-{number}", "ownerReferences": owners}
        body = {"metadata": metadata, "spec": claim["spec"]}
        await controller.create(RESOURCE_CLAIMS, body, namespace=NAMESPACE)

    async def lift(number: int) -> None:
        await controller.patch(PODS, f"ours-{number}", lifted, kind=PatchKind.MERGE, namespace=NAMESPACE)

    async def touch(number: int) -> None:
        body = {"metadata": {"annotations": {"example.com/measured": "1"}}}
        await stage.client.patch(PODS, f"plain-{number}", body, kind=PatchKind.MERGE, namespace=NAMESPACE)

    async def large(number: int) -> None:
        containers = [{**each, "resources": {}, "env": _LONG_ENVIRONMENT} for each in gated["containers"]]
        metadata = {"name": f"large-{number}", "namespace": NAMESPACE, "annotations": {"example.com/long": _LONG}}
        await stage.client.create(PODS, sent | {"metadata": metadata, "spec": gated | {"containers": containers}})

    async def touch_large(number: int) -> None:
        body = {"metadata": {"annotations": {"example.com/measured": "1"}}}
        await stage.client.patch(PODS, f"large-{number}", body, kind=PatchKind.MERGE, namespace=NAMESPACE)

    async def many_requests(number: int) -> None:
        body = {"metadata": {"name": f"many-{number}"}, "spec": {"devices": {"requests": _MANY_REQUESTS}}}
        await stage.client.create(RESOURCE_CLAIMS, body, namespace=NAMESPACE)

    return {
        "POST a pod without our words": plain,
        "POST a pod with our words (webhook)": ours,
        "POST its claim": pinned,
        "PATCH the pod as lifting does": lift,
        "PATCH one annotation of a pod": touch,
        "POST a pod of 500 kB without our words": large,
        "PATCH one annotation of a pod of 500 kB": touch_large,
        "POST another driver's claim, 32 x 8 requests": many_requests,
    }
