"""The node agent: its parts, and how they start and stop together."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from dradriver import __version__
from dradriver.api.objects import Node, ResourceClaim
from dradriver.api.slice_features import WITHOUT
from dradriver.errors import DriverError
from dradriver.kube import config as kube_config
from dradriver.kube.client import Client, PatchKind
from dradriver.kube.config import ServerConfig
from dradriver.kube.events import Recorder, Reference
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS
from dradriver.node import metrics
from dradriver.node.claims import gpu_processes, info
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.host_server import HostServer
from dradriver.node.claims.nccl import Nccl
from dradriver.node.claims.prepare import Preparer
from dradriver.node.claims.reconcile import INTERVAL_S, Reconciler
from dradriver.node.claims.status import Statuses
from dradriver.node.devices import assemble
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.hardware_journal import BOOT_ID, boot_id
from dradriver.node.devices.nvidia.share import Sharing
from dradriver.node.discovery import Discovery, release
from dradriver.node.discovery.hardware import Hardware
from dradriver.node.discovery.nvidia.own_toolkit import OwnToolkit
from dradriver.node.discovery.nvidia.toolkit import BaseSpecification
from dradriver.node.discovery.watch import MachineWatch
from dradriver.node.errors import NotYetError
from dradriver.node.health.events import Holding, PodEvents
from dradriver.node.health.faults import Fault
from dradriver.node.health.kmsg import KernelLog
from dradriver.node.health.record import Record
from dradriver.node.health.runtime import RuntimeWatch
from dradriver.node.health.watch import HealthWatch
from dradriver.node.kubelet import sockets
from dradriver.node.kubelet.health import HealthStream
from dradriver.node.kubelet.plugin import CHECK_S, Plugin
from dradriver.node.kubelet.service import DraService
from dradriver.node.mps.files import MpsFolder
from dradriver.node.publishing.publisher import Publisher
from dradriver.node.publishing.remembered import Remembered
from dradriver.node.threads import Thread
from dradriver.process.policies_file import PoliciesFile
from dradriver.process.serve import serve_health
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)


FIELD_MANAGER: Final = "gpu-topology-node"
NODE_S: Final = 5.0
PROCESSES_S: Final = 10.0  # a driver that hangs does not say which processes are on its GPUs


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; see ``main`` for the meaning of each."""

    node: str
    pod_uid: str
    kubelet_root: Path
    cdi_root: Path
    state_dir: Path
    health_port: int
    discovery: Literal["nvml", "simulated"] = "nvml"
    driver_root: Path | None = None
    host_root: Path = Path("/")
    toolkit: Path | None = None
    simulated_default: str | None = None
    simulated_machines: dict[str, str] = {}
    simulated_dir: Path | None = None
    rediscover_s: float = 10.0
    beside_device_plugin: bool = False
    policies: Path | None = None
    mps: bool = False
    kubeconfig: Path | None = None


async def run(
    options: Options,
    *,
    server: ServerConfig | None = None,
    check_s: float = CHECK_S,
    reconcile_s: float = INTERVAL_S,
) -> None:
    """Be this node's agent until cancelled.

    It is ready while the kubelet has the plugin registered, the driver answers, and the slices are published, or
    deliberately are not.

    Args:
        options: The command line's.
        server: How to reach the API server; what ``options`` says by default.
        check_s: How often to look whether the sockets are still there.
        reconcile_s: How often to look for claims that nobody uses.

    Raises:
        DriverError: Something in the options or on the node is in the way; the message says what.
        OSError: The sockets' folders cannot be used, or the health port is taken.
    """
    paths = sockets.paths(kubelet_root=options.kubelet_root, state_dir=options.state_dir, pod_uid=options.pod_uid)
    policies = PoliciesFile(options.policies, on_change=lambda _: publisher.poke())

    def released() -> str | None:
        return release.reason(publisher.labels)

    discovery = discovery_of(options, released)
    client = Client(
        server or kube_config.load(options.kubeconfig), user_agent=f"gpu-topology-node/{__version__}", timeout_s=10
    )

    async def get_claim(namespace: str, name: str) -> ResourceClaim:
        return await client.get(RESOURCE_CLAIMS, name, namespace=namespace, type=ResourceClaim)

    async def processes(gpus: Sequence[str]) -> Mapping[str, Sequence[int]]:
        if not discovery.slow:
            return discovery.processes(gpus)
        async with asyncio.timeout(PROCESSES_S):
            return await asking.run(lambda: discovery.processes(gpus), question=True)

    def claimable() -> list[str]:
        if machines.machine is None or options.beside_device_plugin or not publisher.published:
            return []
        return [gpu.uuid for gpu in machines.machine.gpus if gpu.mig is None]

    def machine_changed() -> None:
        publisher.poke()
        preparer.poke()
        stream.poke()

    loop = asyncio.get_running_loop()

    def mode_switched() -> None:
        loop.call_soon_threadsafe(machines.poke)  # a change of MIG mode may have changed minor numbers, too

    def in_use(claim: ResourceClaim, done: PreparedClaim) -> None:
        metrics.DEVICE_INFO.set(done.uid, info.rows(claim, done, node=options.node))

    def given_back(uid: str) -> None:
        metrics.DEVICE_INFO.set(uid, ())

    def prepared(claim: ResourceClaim, done: PreparedClaim) -> None:
        in_use(claim, done)
        statuses.put(claim, done)
        stream.poke()

    async def parts() -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for entry in (await preparer.prepared()).values():
            for device in entry.value.devices:
                found.setdefault(device.uuid, []).append(device.device)
        return found

    def registration_changed() -> None:
        publisher.registration_changed()

    async def get_node() -> Node:
        async with asyncio.timeout(NODE_S):
            return await client.get(NODES, options.node, type=Node)

    async def apply_status(namespace: str, name: str, body: dict[str, Any]) -> None:
        await client.patch(
            RESOURCE_CLAIMS,
            name,
            body,
            kind=PatchKind.APPLY,
            namespace=namespace,
            subresource="status",
            field_manager=FIELD_MANAGER,
        )

    async def server_lacks(node: Node, what: str) -> None:
        await events.record(
            about=Reference("Node", "", node.metadata.name, node.metadata.uid),
            type="Warning",
            reason="ServerLacks",
            message=f"the API server keeps no {what} in slices: {WITHOUT[what]}",
            action="Publishing",
        )

    async def mig_off(node: Node, message: str) -> None:
        await events.record(
            about=Reference("Node", "", node.metadata.name, node.metadata.uid),
            type="Warning",
            reason="MigModeOff",
            message=message,
            action="Publishing",
        )

    asking = Thread("processes")  # one, however long a driver hangs
    statuses = Statuses(apply_status)

    def health_changed() -> None:
        publisher.poke()
        stream.poke()
        pod_events.poke()

    async def holdings() -> list[Holding]:
        prepared = (entry.value for entry in (await preparer.prepared()).values())
        return [
            Holding(one.namespace, one.name, one.uid, frozenset(device.uuid for device in one.devices))
            for one in prepared
        ]

    async def used() -> Mapping[str, Sequence[str]] | None:
        try:
            return await parts()
        except (DriverError, OSError) as error:
            logger.warning("what is prepared is not known: %s", error)
            return None

    def sharing(gpu: Gpu) -> Sharing:
        mode = publisher.modes.get(gpu.uuid)
        if mode is None:
            raise NotYetError(f"how GPU {gpu.uuid} is shared is not known yet")
        return Sharing(by="mps" if mode.shared == "mps" else "time-slicing", equal=mode.equal_shares)

    def made(gpu: str) -> bool:
        mode = publisher.modes.get(gpu)
        if mode is None:
            raise NotYetError(f"whether MIG instances are made for pods on GPU {gpu} is not known yet")
        return mode.mig in ("dynamic", "placements")

    def exclusive(gpu: str) -> bool:
        mode = publisher.modes.get(gpu)
        return mode is not None and mode.exclusive_to == "namespace"

    def held(gpus: Mapping[str, str]) -> None:
        record.tell("claims", {uuid: (Fault("held", "", said),) for uuid, said in gpus.items()})

    def stuck(gpus: Mapping[str, str]) -> None:
        record.tell(
            "modes", {uuid: (Fault("mig-mode", "", f"it stays in MIG mode: {why}"),) for uuid, why in gpus.items()}
        )

    def last_known() -> Machine | None:
        """As it was last read; beside a driver that hangs from the start on, as it is published."""
        if machines.machine is None and machines.trouble is not None:
            return publisher.earlier()
        return machines.machine

    def looked() -> None:
        health.looked(last_known(), machines.trouble)

    machines = MachineWatch(discovery, interval_s=options.rediscover_s, on_change=machine_changed, on_look=looked)
    record = Record(on_change=health_changed)
    log = runtime = None
    if options.discovery == "nvml":
        log = KernelLog(options.host_root / "dev/kmsg", words=lambda: policies.in_force.xids)
        runtime = RuntimeWatch(record, options.host_root, last_known)
    health = HealthWatch(record, discovery, log)
    preparer = Preparer(
        node=options.node,
        state_dir=options.state_dir,
        cdi_root=options.cdi_root,
        get_claim=get_claim,
        machine=lambda: machines.machine,
        device_manager=_device_manager(
            options, discovery, lambda: machines.machine, released, sharing, made, mode_switched
        ),
        boot=_boot(options),
        processes=gpu_processes.nobody if options.beside_device_plugin else processes,
        exclusive=exclusive,
        nccl=Nccl(lambda: policies.in_force.nccl.tuning),
        below=HostServer(lambda: policies.in_force.nccl.servers, get_node).find,
        on_prepared=prepared,
        on_given_back=given_back,
    )
    events = Recorder(client, component="gpu-topology-node", instance=options.node)
    pod_events = PodEvents(record, events, holdings=holdings, get_claim=get_claim)
    stream = HealthStream(node=options.node, machine=last_known, standing=record.standing, prepared=parts)
    plugin = Plugin(paths, DraService(preparer), stream, on_change=registration_changed, check_s=check_s)
    publisher = Publisher(
        client,
        node=options.node,
        machine=last_known,
        registered=lambda: plugin.registered,
        taints=record.taints,
        adopt=record.adopt,
        lacks=server_lacks,
        mig_off=mig_off,
        policies=lambda: policies.in_force,
        used=used,
        mps=options.mps,
        remembered=Remembered(options.state_dir / "modes.json"),
        beside_device_plugin=options.beside_device_plugin,
    )
    reconciler = Reconciler(
        preparer,
        get_claim,
        node=options.node,
        processes=processes,
        gpus=claimable,
        on_held=held,
        on_stuck=stuck,
        on_used=in_use,
        on_adopted=statuses.check,
        interval_s=reconcile_s,
    )
    logger.info("agent of node %s, %s GPUs", options.node, options.discovery)
    async with (
        serve_health(
            options.health_port, ready=lambda: plugin.registered and publisher.settled and machines.trouble is None
        ),
        client,
    ):
        try:
            await preparer.recover()
        except (DriverError, OSError) as error:  # the reconciler tries again; claims are served one by one meanwhile
            logger.error("what was prepared before cannot be put right yet: %s", error)
        loop.add_signal_handler(signal.SIGHUP, machines.poke)
        async with asyncio.TaskGroup() as group:
            for work in (
                policies.run,
                machines.run,
                health.run,
                pod_events.run,
                plugin.run,
                publisher.run,
                reconciler.run,
                statuses.run,
            ):
                group.create_task(work())
            if runtime is not None:
                group.create_task(runtime.run())


def discovery_of(options: Options, released: Callable[[], str | None], *, prepares: bool = True) -> Discovery:
    """Return what reads this node's machine.

    Args:
        options: The command line's.
        released: Says why the driver must be let go, if it must.
        prepares: Whether this agent gives GPUs to containers, so that one which it cannot give is left out.
    """
    if options.discovery == "nvml":
        driver_root, host_root = options.driver_root, options.host_root
        base = None
        if prepares:
            own = None
            if options.toolkit is not None:
                own = OwnToolkit(options.toolkit, copies=options.state_dir / "toolkit", host_root=host_root)
            base = BaseSpecification(
                cdi_root=options.cdi_root, host_root=host_root, driver_root=driver_root, own_toolkit=own
            )
        return Hardware(driver_root=driver_root, host_root=host_root, base=base, released=released)
    from dradriver.node.discovery.simulated import Simulated, source_for  # here, for no real node needs it

    source = source_for(options.node, machines=options.simulated_machines, default=options.simulated_default)
    folder = _simulated_dir(options)
    return Simulated(source, node=options.node, folder=folder, seen=assemble.seen(folder, boot=_boot(options)))


def _simulated_dir(options: Options) -> Path:
    return options.simulated_dir or options.state_dir / "simulated"


def _boot(options: Options) -> str:
    """Return the id of this boot; a simulated node may have a file of its own, so that it can be booted."""
    own = _simulated_dir(options) / "boot_id"
    return boot_id(own if options.discovery == "simulated" and own.exists() else BOOT_ID)


def _device_manager(
    options: Options,
    discovery: Discovery,
    machine: Callable[[], Machine | None],
    released: Callable[[], str | None],
    sharing: Callable[[Gpu], Sharing],
    made: Callable[[str], bool],
    switched: Callable[[], None],
) -> DeviceManager:
    mps = MpsFolder(options.state_dir / "mps", boot=_boot(options))
    if options.discovery == "simulated":
        folder = _simulated_dir(options)
        return assemble.simulated(
            discovery.edits, folder, machine, mps=mps, sharing=sharing, made=made, switched=switched
        )
    return assemble.real(
        discovery.edits,
        cdi_root=options.cdi_root,
        host_root=options.host_root,
        driver_root=options.driver_root,
        released=released,
        mps=mps,
        sharing=sharing,
        made=made,
        switched=switched,
    )
