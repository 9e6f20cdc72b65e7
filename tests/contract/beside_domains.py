"""A story of ComputeDomains, told beside a control plane alone: `python -m tests.contract.beside_domains NAME`.

Real are the API server, the scheduler, the controller that makes claims of templates, and the chart's rights, webhook
and controller. Slices and templates are as NVIDIA's driver has them; no kubelet prepares anything.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.kube.client import Client
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dradriver.topology import profiles
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import BOUND_S, NAMESPACE
from tests.fakes import domains
from tests.fakes.admission import pod
from tests.manifests import objects
from tests.paths import REPO

Object = dict[str, Any]

RACKS: Final = {"a1": "u.1", "a2": "u.1", "b1": "u.2", "b2": "u.2"}
EXAMPLE: Final = REPO / "examples" / "beside" / "compute-domain.yaml"
TEMPLATE: Final = "train-channel"  # the example's
JOBS: Final = Resource("batch", "v1", "jobs", "Job", namespaced=True)
DOMAIN: Final = "8f1c2d7e-52c4-4b0e-9f0e-0d6c3a0b7a11"


class Story:
    """Trays of two racks, of which one has lost a channel."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tell(self) -> None:
        """Take a node's channel, and place a pod and a gang beside it."""
        for node, clique in RACKS.items():
            await self.add(node, clique)
        await self._client.create(
            DEVICE_CLASSES,
            {
                "metadata": {"name": domains.CLASS},
                "spec": {"selectors": [{"cel": {"expression": domains.CLASS_CEL}}]},
            },
        )
        await self._client.create(RESOURCE_CLAIM_TEMPLATES, domains.template("alone", "another"), namespace=NAMESPACE)

        # A pod without words of ours, which the scheduler gives the first channel, and no GPU.
        await self.create(
            "first", "alone", None, nodeSelector={"kubernetes.io/hostname": "a1"}, terminationGracePeriodSeconds=0
        )
        assert await self.bound("first") == "a1"
        # Its domain's template comes late. Of all nodes a1 has as many GPUs free as any, and its name is the first.
        gang = await self.example()
        assert "Waiting for ResourceClaimTemplate" in await stories.reason(self._client, gang[0])
        made = domains.template(TEMPLATE, DOMAIN)
        await self._client.create(RESOURCE_CLAIM_TEMPLATES, made, namespace=NAMESPACE)
        assert {await self.bound(name) for name in gang} == {"b1", "b2"}
        await self.create("one", TEMPLATE, 1)
        assert await self.bound("one") == "a2"
        await self.create("none", TEMPLATE, 1)
        assert "its channel is taken by claim default/" in await stories.reason(self._client, "none")

        await self._client.delete(PODS, "first", namespace=NAMESPACE)
        assert await self.bound("none") == "a1"

    async def add(self, name: str, clique: str) -> None:
        """Create a node, and what both drivers publish of it."""
        uid = await stories.add_node(self._client, name, {domains.CLIQUE: clique})
        machine = profiles.load("gb200-nvl72-tray", seed=name)
        ours = resource_slices.build(machine, node=name, node_uid=uid)
        await stories.publish(self._client, (*ours, domains.resource_slice(name)))

    async def example(self) -> list[str]:
        """Create the Job of the example, and return its pods once they are there."""
        (job,) = [one for one in objects(EXAMPLE.read_text("utf-8")) if one["kind"] == "Job"]
        await self._client.create(JOBS, job, namespace=NAMESPACE)
        selector = f"job-name={job['metadata']['name']}"
        found: list[Object] = []
        async with asyncio.timeout(BOUND_S):
            while len(found) < job["spec"]["parallelism"]:
                await asyncio.sleep(0.1)
                found, _ = await self._client.list(PODS, namespace=NAMESPACE, label_selector=selector)
        return [one["metadata"]["name"] for one in found]

    async def create(self, name: str, template: str, gpus: int | None, **more: Any) -> None:
        """Create a pod with a channel; words of ours are told by their names, all else is of its spec."""
        words = {key: text for key, text in more.items() if key.startswith(names.PREFIX)}
        spec = {key: said for key, said in more.items() if key not in words}
        if gpus is not None:
            words = {names.POLICY: "best-effort"} | words
        made = pod(
            gpus, annotations=words, name=name, namespace=NAMESPACE,
            spec={"resourceClaims": [domains.entry(template)]} | spec,
        )  # fmt: skip
        made["spec"]["containers"][0].setdefault("resources", {})["claims"] = [{"name": "channel"}]
        sent = await self._client.create(PODS, made)
        assert domains.entry(template) in sent["spec"]["resourceClaims"], "it is NVIDIA's"

    async def bound(self, name: str) -> str:
        """Wait until a pod is bound, and return its node, whose channel its claim has."""
        found = await stories.bound(self._client, name)
        node = found["spec"]["nodeName"]
        statuses = found["status"]["resourceClaimStatuses"]
        (claim,) = (one["resourceClaimName"] for one in statuses if one["name"] == "channel")
        made = await self._client.get(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)
        (result,) = made["status"]["allocation"]["devices"]["results"]
        assert (result["driver"], result["pool"], result["device"]) == (domains.DRIVER, node, "channel-0")
        return str(node)


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    async with stories.client(plane) as client, stories.driver(plane):
        await Story(client).tell()


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
