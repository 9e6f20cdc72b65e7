"""Stories of the chart's controller and webhook, told by a process inside a control plane without nodes.

What most of them begin with is here: nodes that say that they are ready, slices, pods that are bound or say why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.bench.throughput import chart
from tests.bench.throughput.driver import Driver
from tests.bench.throughput.machines import Machines
from tests.cluster.errors import last_lines
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO

Object = dict[str, Any]

NAMESPACE: Final = "default"
BOUND_S: Final = 60
ENDED_S: Final = 20  # within which a story that is too slow ends what it started


def tell(plane: Nodeless, module: str, *, timeout_s: float) -> None:
    """Run ``python -m tests.contract.MODULE`` inside a control plane, and fail as it does."""
    # A story that is too slow must end inside: its controller would disturb the next story there.
    limit = ["timeout", f"--kill-after={ENDED_S}", str(timeout_s)]
    command = [*plane.enter(), *limit, "env", f"--chdir={REPO}", sys.executable, "-m", f"tests.contract.{module}"]
    done = subprocess.run([*command, plane.folder.name], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}status {done.returncode}; 124: not within {timeout_s:g} s"


def client(plane: Nodeless) -> Client:
    """Return a client of the control plane, for who tells a story."""
    return Client(from_kubeconfig(plane.kubeconfig), user_agent="contract", timeout_s=30)


@contextlib.asynccontextmanager
async def driver(plane: Nodeless, *settings: str) -> AsyncIterator[None]:
    """Run the controller and the webhook of the chart with these settings; what fails shows the ends of their logs."""
    found = await chart.render(plane.helm, REPO, plane.folder / "helm", *settings)
    made = Driver(REPO, found, plane.folder / "driver", profiles=None)
    await made.prepare(chart.Kubectl(plane.binaries / "kubectl", plane.kubeconfig), plane.kubeconfig)
    async with made.running("webhook", "controller"):
        try:
            yield
        except BaseException:
            for log in sorted((plane.folder / "driver").glob("*.log")):
                sys.stderr.write(f"{log.name}: {last_lines(log)}\n")
            raise


async def on_machines(
    plane: Nodeless,
    story: Callable[[Client, Machines], Awaitable[None]],
    *,
    labels: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> None:
    """Tell a story of nodes with eight GPUs each, which it adds itself, next to the chart's controller and webhook."""
    async with client(plane) as admin:
        machines = Machines(admin, "dgx1-v100", mode=Mode(), connections=8, labels=labels)
        async with driver(plane):
            await story(admin, machines)


async def add_node(client: Client, name: str, labels: Mapping[str, str] | None = None) -> str:
    """Create a node that says that it is ready, and return its uid."""
    room = {"cpu": "96", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    made = await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
    return str(made["metadata"]["uid"])


async def publish(client: Client, pieces: Iterable[Object]) -> None:
    """Create slices, each of the first generation of its pool."""
    for piece in pieces:
        piece["spec"]["pool"]["generation"] = 1
        await client.create(RESOURCE_SLICES, piece)


def keeping_away(labels: Mapping[str, str]) -> Object:
    """Return an affinity that keeps pods with these labels away; if a foreign pod has it, only the scheduler knows."""
    terms = [{"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": "kubernetes.io/hostname"}]
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


async def bound(client: Client, name: str) -> Object:
    """Return a pod once it is bound."""
    async with asyncio.timeout(BOUND_S):
        while not (found := await client.get(PODS, name, namespace=NAMESPACE))["spec"].get("nodeName"):
            await asyncio.sleep(0.1)
    return found


async def reason(client: Client, name: str) -> str:
    """Return why a pod waits, once it says so."""
    async with asyncio.timeout(BOUND_S):
        while True:
            found = await client.get(PODS, name, namespace=NAMESPACE)
            if said := found["metadata"]["annotations"].get(names.REASON):
                return str(said)
            await asyncio.sleep(0.1)


async def given(client: Client, pod: Object) -> list[Object]:
    """Return the devices that the scheduler gave a pod's only claim."""
    (entry,) = pod["spec"]["resourceClaims"]
    claim = await client.get(RESOURCE_CLAIMS, entry["resourceClaimName"], namespace=NAMESPACE)
    found: list[Object] = claim["status"]["allocation"]["devices"]["results"]
    return found
