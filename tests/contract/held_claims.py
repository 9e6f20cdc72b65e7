"""Claims that would keep GPUs from others, beside a control plane: `python -m tests.contract.held_claims NAME`.

Real are the API server, the scheduler, and the chart's rights, policies, webhook and controller.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import CONFIG_MAPS, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dradriver.topology import profiles
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import BOUND_S, NAMESPACE
from tests.fakes.admission import pod

Object = dict[str, Any]

AVOIDED: Final = {"app": "shunned"}
KEPT: Final = "example.com/keep"


class Story:
    """A gang that waits at its barrier, and pods whose claims the scheduler searches for."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def gang(self) -> None:
        """Delete a pod at the gang barrier: its GPUs are free at once, whatever a tenant did to the claim."""
        for node in ("gang-a", "gang-b"):
            await self.add(node, Mode())
        containers = [{"name": "main", "image": "none"}]
        spec = {"nodeName": "gang-b", "containers": containers, "affinity": stories.keeping_away(AVOIDED)}
        await self._client.create(PODS, {"metadata": {"name": "foreign", "namespace": NAMESPACE}, "spec": spec})
        words = {names.POLICY: "nvlink", names.GANG: "train", names.GANG_SIZE: "2"}
        for name in ("train-0", "train-1"):
            ends = {"terminationGracePeriodSeconds": 0}
            made = pod(8, annotations=words, labels=AVOIDED, name=name, namespace=NAMESPACE, spec=ends)
            await self._client.create(PODS, made)
        claim = await self.seated("train-0", "train-1")
        for finalizers in ([names.FINALIZER, KEPT], [KEPT]):
            assert "gpu-topology-finalizers" in await self.refusal(claim, finalizers)
        await self.block(claim)
        began = time.monotonic()
        for name in ("train-0", "train-1"):
            await self._client.delete(PODS, name, namespace=NAMESPACE)
        for name in ("next-0", "next-1"):
            made = pod(8, annotations={names.POLICY: "nvlink"}, name=name, namespace=NAMESPACE)
            await self._client.create(PODS, made)
        for name in ("next-0", "next-1"):
            await stories.bound(self._client, name)
        body = {"metadata": {"finalizers": None}}
        await self._client.patch(CONFIG_MAPS, "blocks", body, kind=PatchKind.MERGE, namespace=NAMESPACE)
        sys.stderr.write(f"GPUs of a deleted gang were given to others within {time.monotonic() - began:.1f} s\n")

    async def refusal(self, claim: str, finalizers: list[str]) -> str:
        """Return why a claim may not have these finalizers. A new policy is in force within seconds."""
        body: Object = {"metadata": {"finalizers": finalizers}}
        async with asyncio.timeout(BOUND_S):
            while True:
                try:
                    await self._client.patch(
                        RESOURCE_CLAIMS, claim, body, kind=PatchKind.MERGE, namespace=NAMESPACE, dry_run=True
                    )
                except ApiError as error:
                    return error.message
                await asyncio.sleep(0.2)

    async def block(self, claim: str) -> None:
        """Have a claim's deletion wait for another object, which stays."""
        found = await self._client.get(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)
        owner: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "name": claim}
        owner |= {"uid": found["metadata"]["uid"], "blockOwnerDeletion": True}
        body = {"metadata": {"name": "blocks", "finalizers": [KEPT], "ownerReferences": [owner]}}
        await self._client.create(CONFIG_MAPS, body, namespace=NAMESPACE)
        body = {"metadata": {"finalizers": [names.FINALIZER, "foregroundDeletion"]}}
        await self._client.patch(RESOURCE_CLAIMS, claim, body, kind=PatchKind.MERGE, namespace=NAMESPACE)

    async def seated(self, *pods: str) -> str:
        """Return the name of the first claim of these pods that has its GPUs while its pod is not bound."""
        async with asyncio.timeout(BOUND_S):
            while True:
                for name in pods:
                    found = await self._client.get(PODS, name, namespace=NAMESPACE)
                    (entry,) = found["spec"]["resourceClaims"]
                    try:
                        claim = await self._client.get(RESOURCE_CLAIMS, entry["resourceClaimName"], namespace=NAMESPACE)
                    except ApiError as error:
                        assert error.not_found, error
                        continue
                    if claim.get("status", {}).get("allocation") and not found["spec"].get("nodeName"):
                        return str(claim["metadata"]["name"])
                await asyncio.sleep(0.1)

    async def searches(self) -> None:
        """Have the scheduler search for the worst claims that are let in: it ends by itself, and others are bound."""
        await self.add("parts", Mode(shared="mps"))
        await self.add("whole", Mode())
        await self.use("most-shares", "parts", *[share(60)] * 7)
        await self.use("last-share", "parts", share(70))
        await self.use("most-gpus", "whole", gpu(1))
        for name in ("most-shares", "last-share", "most-gpus"):
            await stories.bound(self._client, name)
        seventeen = template("seventeen", *[share(40)] * 17)
        try:
            await self._client.create(RESOURCE_CLAIM_TEMPLATES, seventeen, namespace=NAMESPACE)
        except ApiError as error:
            assert "gpu-topology-parts" in error.message, error
        else:
            raise AssertionError("the scheduler would search for seventeen shares for longer than it may")
        worst = {
            "shares": ("parts", [share(40)] * 8),
            "unlike": ("parts", [share(1), share(1), share(1), share(50)]),
            "gpus": ("whole", [gpu(1)] * 8),
            "halves": ("whole", [gpu(4), gpu(4)]),
            "count": ("whole", [gpu(16)]),
        }
        for name, (node, requests) in worst.items():
            await self.use(name, node, *requests)
            longest_s = 0.0
            for number in itertools.count():
                began = time.monotonic()
                await self._client.create(PODS, plain(f"after-{name}-{number}"))
                await stories.bound(self._client, f"after-{name}-{number}")
                longest_s = max(longest_s, time.monotonic() - began)
                if reason := await self.refused(name):
                    break
            sys.stderr.write(f"{name}: other pods were bound within {longest_s:.1f} s\n")
            assert reason == "Unschedulable", "the search ended before the scheduler's limit"

    async def refused(self, name: str) -> str:
        """Return the scheduler's reason for not placing a pod, which is SchedulerError after 10 s; empty before."""
        found = await self._client.get(PODS, name, namespace=NAMESPACE)
        conditions = found["status"].get("conditions", ())
        return next((str(met["reason"]) for met in conditions if met["type"] == "PodScheduled"), "")

    async def add(self, name: str, mode: Mode) -> None:
        machine = profiles.load("dgx-h100", seed=name)
        uid = await stories.add_node(self._client, name)
        modes = {found.uuid: mode for found in machine.gpus}
        await stories.publish(self._client, resource_slices.build(machine, node=name, node_uid=uid, modes=modes))

    async def use(self, name: str, node: str, *requests: Object) -> None:
        """Create a template, and a pod for one node that uses it."""
        await self._client.create(RESOURCE_CLAIM_TEMPLATES, template(name, *requests), namespace=NAMESPACE)
        made = plain(name)
        made["spec"] |= {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": name}],
        }
        await self._client.create(PODS, made)


def gpu(count: int) -> Object:
    return {"deviceClassName": names.DEVICE_CLASS, "count": count}


def share(cores: int) -> Object:
    requests = {names.CAPACITY_CORES: str(cores), names.CAPACITY_MEMORY: "1Gi"}
    return {"deviceClassName": names.SHARE_CLASS, "capacity": {"requests": requests}}


def template(name: str, *requests: Object) -> Object:
    devices = {"requests": [{"name": f"r{i}", "exactly": exactly} for i, exactly in enumerate(requests)]}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"spec": {"devices": devices}}}


def plain(name: str) -> Object:
    return pod(None, name=name, namespace=NAMESPACE)


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    async with stories.client(plane) as client, stories.driver(plane):
        story = Story(client)
        await story.gang()
        await story.searches()


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
