"""The node agent: creates its components, each after those that it uses, and starts and stops them together.

A reading is the machine (GPUs, links, network cards) as the agent found it at one time. The slices are the
ResourceSlices of the node, in which the agent publishes the machine. The plugin is the agent as the kubelet sees it:
sockets on which the kubelet calls the agent.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from dradriver import __version__
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.policies.policy_sections import Policies
from dradriver.errors import DriverError
from dradriver.event import Event
from dradriver.kube import config as kube_config
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.node import hardware, metrics
from dradriver.node.agent_options import Options
from dradriver.node.api_server import ApiServer
from dradriver.node.claims import gpu_processes, prepared_gpu_info
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.host_server import HostServer
from dradriver.node.claims.missing_info_events import NotTold
from dradriver.node.claims.nccl_settings import Nccl
from dradriver.node.claims.prepare import Preparer
from dradriver.node.claims.reconcile import INTERVAL_S, Reconciler
from dradriver.node.claims.status import Statuses
from dradriver.node.discovery.gpu_slots import Slots
from dradriver.node.discovery.machine_watch import MachineWatch
from dradriver.node.faults import Fault
from dradriver.node.health.cdi_runtime_check import RuntimeWatch
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.health_watch import HealthWatch
from dradriver.node.health.node_events import NodeEvents
from dradriver.node.health.pod_events import PodEvents
from dradriver.node.idle import idle_watch
from dradriver.node.idle.idle_watch import IdleWatch
from dradriver.node.kubelet import sockets
from dradriver.node.kubelet.gpu_health_service import HealthStream
from dradriver.node.kubelet.plugin import CHECK_S, Plugin
from dradriver.node.kubelet.service import DraService
from dradriver.node.nics import nic_watch
from dradriver.node.nics.nic_watch import NicWatch
from dradriver.node.publishing.mode_transition import ModeTransitions
from dradriver.node.publishing.node_objects import NodeObjects
from dradriver.node.publishing.publisher import Publisher
from dradriver.node.publishing.remembered_modes import Remembered
from dradriver.process.health_server import serve_health
from dradriver.process.policies_file import PoliciesFile
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

COMPONENT: Final = "gpu-topology-node"


class Agent:
    """The components of one node's agent."""

    def __init__(self, options: Options, client: Client, *, check_s: float, reconcile_s: float) -> None:
        """Create and connect the components; nothing runs yet.

        ``client`` is the client of the API server. ``check_s`` is the number of seconds between two checks of the
        plugin's sockets. ``reconcile_s`` is the number of seconds between two searches for unused claims. Raises
        DriverError if the agent cannot run with these options or on this node.
        """
        self._options = options
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._api = ApiServer(client, options.node)
        self._events = Recorder(client, component=COMPONENT, instance=options.node)
        self._new_policies: Event[[Policies]] = Event()  # called with the policies whenever the file changes them
        self._policies = PoliciesFile(options.policies, on_change=self._new_policies)
        self._objects = NodeObjects(client, options.node)

        # What each GPU is published as (whole, shared, sliced), which the policies file can change.
        self._modes = ModeTransitions(
            lambda: self._policies.in_force,
            node=options.node,
            mps=options.mps,
            remembered=Remembered(options.state_dir / "modes.json"),
        )

        # The vendor's code that reads the hardware, and the GPUs' numbers, which stay the same when others are lost.
        self._hardware = hardware.backend(options, self._objects.released, xids=lambda: self._policies.in_force.xids)
        self._discovery = self._hardware.discovery
        self._slots = Slots(
            self._hardware.state_dir or options.state_dir,
            published=self._objects.published,
            is_removed=lambda uuid: self._objects.is_removed(uuid) or self._hardware.is_foreign(uuid),
        )
        # ``withdraw`` is called when the driver was loaded again: device numbers that were written may be wrong now.
        # The watch offers three views of the machine, each None before the first reading:
        # - ``machine``: the last reading, even if the driver was loaded again since.
        # - ``current``: the same, but None from a new load of the driver until the next reading.
        # - ``last_known()``: as ``machine``. If no reading ever worked, the machine that an earlier agent published.
        self._machines = MachineWatch(
            self._discovery,
            interval_s=options.rediscover_s,
            earlier=self._objects.earlier,
            is_stale=self._hardware.is_stale,
            withdraw=self._withdraw,
            slots=self._slots,
        )
        self._processes = gpu_processes.asked_of(self._discovery)

        # The order matters: each part uses those that were created before it.
        self._watch_health()
        self._prepare()
        self._serve(check_s)
        self._publish()
        self._give_back(reconcile_s)

    def _watch_health(self) -> None:
        """Create the parts that find faults of GPUs and of network cards.

        Faults of GPUs are found in readings, the kernel log and the container runtime's settings, faults of network
        cards in /sys.
        """
        self._record = Record()
        self._runtime: RuntimeWatch | None = None
        self._nics: NicWatch | None = None

        # A simulated node has no container runtime and no network cards to watch.
        if self._options.discovery != "simulated":
            host_root = self._options.host_root
            device_root = self._options.device_root or host_root
            self._runtime = RuntimeWatch(
                self._record, host_root, self._machines.last_known, lambda: self._objects.runtime
            )
            self._nics = nic_watch.of_host(
                device_root, self._machines.last_known, node=self._options.node, events=self._events, about=self._about
            )
        self._record.changed.add(self._tell_faults)
        self._health = HealthWatch(self._record, self._discovery, self._hardware.log)
        self._node_events = NodeEvents(
            self._record, self._events, node=self._options.node, about=self._about, place=self._health.place
        )
        self._record.changed.add(self._node_events.poke)
        self._objects.node_changed.add(lambda _: self._node_events.poke())
        self._machines.looked.add(self._tell_health)

    def _tell_health(self) -> None:
        """Report the last reading and the missing GPUs to the part that watches health.

        The missing GPUs are those in the agent's table of GPU slots (the numbered places of the server) that the
        reading did not find. The published slices do not name all missing GPUs, because the kubelet deletes the slices
        each time that the kubelet starts.
        """
        self._health.looked(self._machines.last_known(), self._machines.trouble)
        self._health.adopt(self._slots.missing)

    def _prepare(self) -> None:
        """Create the parts that prepare claims, write their statuses, and write Events about their pods."""
        options, policies = self._options, self._policies
        nccl = Nccl(lambda: policies.in_force.nccl.tuning, self._active_ports)
        self._not_told = NotTold(self._events)
        nccl.not_told.add(self._not_told.put)

        # Containers get device numbers, so claims are prepared from ``current``, never from an outdated reading. If a
        # device plugin hands out the same GPUs, processes outside of claims are right to be there. ``below`` finds the
        # physical server below a virtual machine.
        self._preparer = Preparer(
            node=options.node,
            state_dir=options.state_dir,
            cdi_root=options.cdi_root,
            get_claim=self._api.claim,
            machine=lambda: self._machines.current,
            device_manager=hardware.device_manager(
                options,
                self._hardware,
                self._machines,
                self._modes,
                released=self._objects.released,
                switched=self._mode_switched,
            ),
            boot=hardware.boot_of(options),
            processes=gpu_processes.nobody if options.allow_device_plugin else self._processes,
            exclusive=self._modes.exclusive,
            nccl=nccl,
            below=HostServer(lambda: policies.in_force.nccl.servers, self._api.node).find,
        )
        # The idle watch reads counters by uuid, which no load of the driver changes: an outdated reading will do.
        self._idle = IdleWatch(
            idle_watch.asked_of(self._discovery), self._preparer.prepared, lambda: self._machines.machine
        )
        self._statuses = Statuses(self._api.apply_status, self._idle.idle_since)
        self._pod_events = PodEvents(
            self._record,
            self._events,
            prepared=self._preparer.prepared,
            get_claim=self._api.claim,
            node=options.node,
            place=self._health.place,
        )

        # Connections between the parts: what is called once a claim can be used, and once it is released.
        self._preparer.made_ready.add(
            self._in_use, self._statuses.put, lambda _claim, _prepared: self._pod_events.poke()
        )
        self._preparer.given_back.add(
            lambda uid: metrics.DEVICE_INFO.set(uid, ()), self._statuses.forget, self._idle.forget
        )
        self._machines.changed.add(self._preparer.machine_changed, self._tell_numbers)
        self._record.changed.add(self._pod_events.poke)

    def _serve(self, check_s: float) -> None:
        """Create the plugin that the kubelet calls, and the stream of device health that the kubelet watches.

        ``check_s`` is the number of seconds between two checks that the plugin's sockets exist.
        """
        options = self._options
        self._stream = HealthStream(
            node=options.node,
            machine=self._machines.last_known,
            standing=self._record.standing,
            prepared=self._preparer.devices,
        )
        paths = sockets.paths(kubelet_root=options.kubelet_root, state_dir=options.state_dir, pod_uid=options.pod_uid)
        self._plugin = Plugin(paths, DraService(self._preparer), self._stream, check_s=check_s)
        self._machines.changed.add(self._stream.poke)
        self._record.changed.add(self._stream.poke)
        self._preparer.made_ready.add(lambda _claim, _prepared: self._stream.poke())

    def _publish(self) -> None:
        """Create the part that publishes the node's slices."""
        self._publisher = Publisher(
            self._client,
            self._objects,
            machine=self._machines.publishable,
            registered=lambda: self._plugin.registered,
            modes=self._modes,
            taints=self._record,
            events=self._events,
            used=self._preparer.devices,
            allow_device_plugin=self._options.allow_device_plugin,
            refused=self._hardware.refused,
            lost=self._health,
        )
        self._machines.changed.add(self._publisher.poke)
        self._record.changed.add(self._publisher.poke)
        self._plugin.changed.add(self._publisher.registration_changed)
        self._new_policies.add(lambda _: self._publisher.poke())

    def _give_back(self, reconcile_s: float) -> None:
        """Create the part that unprepares claims that no pod uses any more.

        ``reconcile_s`` is the number of seconds between two searches for these claims.
        """
        self._reconciler = Reconciler(
            self._preparer,
            self._api.claim,
            node=self._options.node,
            processes=self._processes,
            gpus=self._publisher.whole,
            interval_s=reconcile_s,
        )
        self._reconciler.used.add(self._in_use, self._idle.used_by, self._statuses.check)
        self._reconciler.held.add(self._held)
        self._reconciler.stuck.add(self._stuck)

    @property
    def gpus(self) -> str:
        """Return a text for log lines: the vendor of the agent's GPUs, and whether the GPUs are simulated."""
        how = " simulated" if self._options.discovery == "simulated" else ""
        return f"{self._hardware.vendor.word}'s{how}"

    @property
    def ready(self) -> bool:
        """Return whether the agent is ready; ``run`` lists the conditions.

        The kubelet has the plugin registered, the GPUs' kernel driver answers, and the slices are published or withheld
        for a known reason.
        """
        return self._plugin.registered and self._publisher.settled and self._machines.trouble is None

    async def run(self) -> None:
        """Run this node's agent until cancelled."""
        try:
            await self._preparer.recover()
        except (DriverError, OSError) as error:
            # The reconciler tries again. Until then each claim is put right when the kubelet asks for it.
            logger.error("The claims that were prepared before this start cannot be restored yet: %s", error)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._machines.poke)
        parts = (
            self._policies, self._machines, self._preparer, self._health, self._pod_events, self._node_events,
            self._plugin, self._publisher, self._reconciler, self._statuses, self._idle, self._not_told,
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part.run())
            for watch in (self._runtime, self._nics):  # of hardware that is not simulated
                if watch is not None:
                    group.create_task(watch.run())

    def _about(self) -> Reference | None:
        node = self._objects.node
        return None if node is None else Reference("Node", "", node.metadata.name, node.metadata.uid)

    def _active_ports(self, machine: Machine) -> Mapping[str, Sequence[int]] | None:
        """Return the numbers of each network card's active ports, by the card's name.

        The numbers are from the last reading of the ports; the result is None before the first. On a simulated node,
        each card of ``machine`` has one active port.
        """
        return {nic.name: (1,) for nic in machine.nics} if self._nics is None else self._nics.active()

    async def _withdraw(self) -> None:
        """Remove the CDI specs that are outdated because the GPUs' kernel driver was loaded again.

        Numbers of device nodes may have changed, and MIG instances and shares do not exist any more. The machine watch
        calls this between two readings.
        """
        self._hardware.withdraw()
        await self._preparer.recover()

    def _mode_switched(self) -> None:
        """Read the machine again, because a GPU's MIG mode was changed.

        The change may also have changed the numbers of the GPUs' device nodes.
        """
        self._loop.call_soon_threadsafe(self._machines.poke)

    def _in_use(self, claim: ResourceClaim, prepared: PreparedClaim) -> None:
        metrics.DEVICE_INFO.set(prepared.uid, prepared_gpu_info.rows(claim, prepared, node=self._options.node))

    def _tell_numbers(self) -> None:
        machine, node = self._machines.machine, self._options.node
        gpus = () if machine is None else machine.gpus
        metrics.NUMBER_INFO.set("", ((gpu.uuid, node, str(gpu.index), str(gpu.current_driver_index)) for gpu in gpus))

    def _tell_faults(self) -> None:
        standing, node = self._record.standing(), self._options.node
        metrics.FAULT_INFO.set(
            "", ((uuid, node, fault.fault.kind) for uuid, some in standing.items() for fault in some)
        )

    def _held(self, gpus: Mapping[str, str]) -> None:
        self._record.tell("claims", {uuid: (Fault("held", "", text),) for uuid, text in gpus.items()})

    def _stuck(self, gpus: Mapping[str, str]) -> None:
        faults = {uuid: (Fault("mig-mode", "", f"the GPU stays in MIG mode: {why}"),) for uuid, why in gpus.items()}
        self._record.tell("modes", faults)


async def run(
    options: Options,
    *,
    server: ServerConfig | None = None,
    check_s: float = CHECK_S,
    reconcile_s: float = INTERVAL_S,
) -> None:
    """Run this node's agent until cancelled.

    The health port answers "ready" if three things are true. The kubelet has the plugin registered. The GPUs' kernel
    driver answers. The agent has published the slices, or does not publish them for a known reason.

    Args:
        options: The options of the command line.
        server: Address and credentials of the API server; by default those of ``options``.
        check_s: Seconds between two checks that the plugin's sockets exist.
        reconcile_s: Seconds between two searches for claims that no pod uses.

    Raises:
        DriverError: The agent cannot run with these options or on this node; the message says why.
        OSError: The sockets' folders cannot be used, or the health port is taken.
    """
    client = client_of(options, server)
    agent = Agent(options, client, check_s=check_s, reconcile_s=reconcile_s)
    # ``agent.gpus`` is the vendor's word, not a count: "nvidia's", or "nvidia's simulated".
    logger.info("agent of node %s, %s GPUs", options.node, agent.gpus)
    async with serve_health(options.health_port, ready=lambda: agent.ready), client:
        await agent.run()


def client_of(options: Options, server: ServerConfig | None) -> Client:
    """Return a client of the API server for the agent, for ``async with``.

    ``server`` has address and credentials; if it is None, ``options`` names a kubeconfig. The errors are those of
    ``kube.config.load``.
    """
    config = server or kube_config.load(options.kubeconfig)
    return Client(config, user_agent=f"{COMPONENT}/{__version__}", timeout_s=10)
