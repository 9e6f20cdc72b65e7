"""How long a pod takes from its creation until it runs, with our annotation and without, in turns."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from dradriver.api.base import names
from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import NAMESPACES, PODS
from tests.cluster import Cluster
from tests.e2e.kubectl import pod

NAMESPACE = "bench"


async def measure(cluster: Cluster, *, rounds: int = 20) -> dict[str, float]:
    """Return the median seconds from POST to Running of plain pods and of pods placed by us, and their ratio."""
    async with Client(from_kubeconfig(cluster.kubeconfig), user_agent="bench") as client:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        try:
            took: dict[str, list[float]] = {"plain": [], "placed": []}
            for number in range(rounds):
                for kind in took:
                    words = {names.POLICY: "nvlink"} if kind == "placed" else None
                    manifest = pod(f"{kind}-{number}", gpus=4 if words else 0, words=words, node="node-a")
                    # Deleted without grace, a pod is gone from the API seconds before its GPUs are given back, and
                    # the next one's would be waited for.
                    manifest["spec"]["terminationGracePeriodSeconds"] = 1
                    took[kind].append(await _start(client, manifest))
        finally:
            await client.delete(NAMESPACES, NAMESPACE)
    plain, placed = (statistics.median(took[kind]) for kind in ("plain", "placed"))
    return {"plain_s": plain, "placed_s": placed, "ratio": placed / plain}


async def _start(client: Client, manifest: dict[str, Any]) -> float:
    name = manifest["metadata"]["name"]
    begun = time.monotonic()
    await client.create(PODS, manifest, namespace=NAMESPACE)
    async with asyncio.timeout(60):
        while (await client.get(PODS, name, namespace=NAMESPACE))["status"].get("phase") != "Running":
            await asyncio.sleep(0.01)
        took = time.monotonic() - begun
        await client.delete(PODS, name, namespace=NAMESPACE)
        # the next round needs these GPUs, and an idle machine
        while (await client.list(PODS, namespace=NAMESPACE))[0]:
            await asyncio.sleep(0.05)
    return took
