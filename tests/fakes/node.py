"""What the node agent's tests share: claims as the scheduler leaves them, and a whole agent beside its fakes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node import agent
from dradriver.node.agent_options import Options
from dradriver.node.claims.container_env import ContainerEnv
from dradriver.node.claims.nccl_settings import ActivePorts, Nccl
from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.whole_gpus import Whole
from dradriver.node.threads import BESIDE
from dradriver.node.vendors.nvidia.devices.mps_and_time_slicing import Sharing, TimeSliced
from dradriver.topology import profiles
from dradriver.topology.machine import Gpu, Machine
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.kubelet import Claim, FakeKubelet

NODE = "node-a"
BOOT = "boot-1"
PROFILE = "dgx1-v100"
Object = dict[str, Any]


def edits(gpu: Gpu) -> Edits:
    """What a container is given of a simulated GPU."""
    return Edits(nodes=(DeviceNode(f"/dev/nvidia{gpu.minor}", "/dev/null"),))


def device_manager() -> DeviceManager:
    """The kinds of devices of a node on which nothing has to be made."""
    return DeviceManager([TimeSliced(edits, lambda _: Sharing()), Whole(edits)])


def container_env(
    profile: str = "",
    ports: ActivePorts = lambda _: None,
    not_told: Callable[[ResourceClaim, str], object] = lambda _, __: None,
) -> ContainerEnv:
    """What containers are told, by a tuning profile and active ports; their files are in a folder that is not there."""
    nccl = Nccl(lambda: profile, ports)
    nccl.not_told.add(not_told)
    return ContainerEnv(lambda uid, name: f"/state/files/{uid}/{name}", nccl)


@functools.cache
def machine(node: str = NODE, profile: str = PROFILE) -> Machine:
    """The machine that a simulated node has."""
    return profiles.load(profile, seed=node)


def device(gpu: int, node: str = NODE) -> str:
    """The device name of a GPU of the node's machine."""
    return resource_slices.device_name(machine(node).gpus[gpu].uuid)


def uuid(gpu: int, node: str = NODE) -> str:
    """The uuid of a GPU of the node's machine."""
    return machine(node).gpus[gpu].uuid


def result(request: str, name: str, **more: Any) -> Object:
    """One allocated device."""
    return {"request": request, "driver": names.DRIVER, "pool": NODE, "device": name, **more}


def claim(
    name: str,
    gpus: Sequence[int] | dict[str, Sequence[int]] = (),
    *,
    uid: str | None = None,
    results: list[Object] | None = None,
    config: Sequence[Object] = (),
    used: bool = True,
    namespace: str = "default",
) -> Object:
    """An allocated claim: GPUs of one request ``gpu``, or of several by name, or the results themselves."""
    by_request = gpus if isinstance(gpus, dict) else {"gpu": gpus}
    if results is None:
        results = [result(request, device(gpu)) for request, some in by_request.items() for gpu in some]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}"},
        "spec": {"devices": {}},
        "status": {
            "allocation": {"devices": {"results": results, "config": list(config)}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "pod-uid"}] if used else [],
        },
    }


def typed(obj: Object) -> ResourceClaim:
    """The claim as the agent decodes it."""
    return msgspec.json.decode(msgspec.json.encode(obj), type=ResourceClaim)


def parameters(
    order: dict[str, list[str]] | None = None,
    keep_env: Sequence[str] = (),
    *,
    source: str = "FromClaim",
    nccl: str | None = None,
    mig: Object | None = None,
    **more: Any,
) -> Object:
    """An entry of ``allocation.devices.config`` with our opaque configuration."""
    opaque: Object = {
        "apiVersion": names.CONFIG_API_VERSION,
        "kind": names.CONFIG_KIND,
        "order": order or {},
        "keepEnv": list(keep_env),
    }
    opaque |= ({} if nccl is None else {"nccl": nccl}) | ({} if mig is None else {"mig": mig})
    return {"source": source, "opaque": {"driver": names.DRIVER, "parameters": opaque}, **more}


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name; pytest's own can be too deep."""
    folder = Path(tempfile.mkdtemp(prefix="gt-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


async def eventually(holds: Callable[[], object], *, within_s: float = 50.0) -> None:
    """Wait until something holds that other tasks bring about over real sockets."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.005)


class NodeUnderTest:
    """One node: folders, an API server, a kubelet, and agents that are started and stopped."""

    def __init__(self, root: Path, api: FakeApiServer) -> None:
        self.root = root
        self.api = api
        self.cdi = root / "cdi"
        self.state = root / "plugins" / names.DRIVER
        self.kubelet = FakeKubelet(root)
        api.put(NODES, {"metadata": {"name": NODE, "uid": "node-uid"}, "status": {"allocatable": {"cpu": "8"}}})

    def options(self, pod_uid: str = "pod-1", *, health_port: int = 0, **more: Any) -> Options:
        """The options of an agent on this node."""
        usual: dict[str, Any] = {"discovery": "simulated", "simulated_default": PROFILE, "rediscover_s": 0.02}
        return Options(
            node=NODE,
            pod_uid=pod_uid,
            kubelet_root=self.root,
            cdi_root=self.cdi,
            state_dir=self.state,
            health_port=health_port,
            **(usual | more),
        )

    @contextlib.asynccontextmanager
    async def agent(self, pod_uid: str = "pod-1", **more: Any) -> AsyncIterator[asyncio.Task[None]]:
        """Run an agent during the block, then stop it as on SIGTERM and wait until the kubelet no longer calls it."""
        work = agent.run(self.options(pod_uid, **more), server=self.api.config, check_s=0.02, reconcile_s=0.02)
        task = asyncio.create_task(work)
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for thread in threading.enumerate():  # a process would end with them
                if thread.name == BESIDE:
                    thread.join(1)
        # A test that calls the kubelet next must reach another agent, not the socket of this one.
        await eventually(lambda: all(pod_uid not in path.name for path in self.kubelet.seen))

    @property
    def slices(self) -> list[Object]:
        """The slices that the API server has."""
        return self.api.all(RESOURCE_SLICES)

    @property
    def specs(self) -> dict[str, Object]:
        """The CDI specs on the node by file name."""
        return {path.name: msgspec.json.decode(path.read_bytes()) for path in sorted(self.cdi.glob("*"))}

    @property
    def checkpoint(self) -> list[str]:
        """The uids of the claims in the checkpoint."""
        return sorted(path.stem for path in (self.state / "claims").glob("*.json"))

    def put_claim(self, obj: Object) -> Claim:
        """Put a claim on the API server; what the kubelet calls it."""
        stored = self.api.put(RESOURCE_CLAIMS, obj)["metadata"]
        return stored["namespace"], stored["name"], stored["uid"]

    async def published(self) -> None:
        """Wait until the node has slices."""
        await eventually(lambda: self.slices)


@contextlib.asynccontextmanager
async def a_node() -> AsyncIterator[NodeUnderTest]:
    """A node with an API server and a kubelet that runs."""
    with short_folder() as root:
        async with FakeApiServer() as api:
            node = NodeUnderTest(root, api)
            async with node.kubelet:
                yield node
