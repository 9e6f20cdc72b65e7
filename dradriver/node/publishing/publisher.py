"""Publishes this node's GPUs: writes its ResourceSlices, and corrects them after each change.

Slices are published only while the kubelet has the plugin registered. Before that they would attract pods that the
kubelet then refuses.

The kubelet deletes the slices in two cases: when the kubelet starts, before it registers plugins, and 30 s after the
plugin disappeared. The agent watches the slices, so it sees this. The agent deletes no slices when it ends. So the
slices do not change if the agent restarts within these 30 s.

The mode of a GPU says how it is published: whole, shared or cut into MIG slices. A claim is prepared if the agent has
made its devices ready for pods.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.objects import Node
from dradriver.api.policies.policy_sections import DEFAULTS
from dradriver.api.slices import lost_gpus, resource_slices
from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.api.slices.slice_features import SliceFeatures
from dradriver.errors import DriverError
from dradriver.kube.backoff import wait_s
from dradriver.kube.client import Client
from dradriver.kube.errors import ApiError
from dradriver.kube.event_recorder import Recorder
from dradriver.kube.reflector import Change
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node import metrics
from dradriver.node.publishing import allocated_devices, feature_probe, pool
from dradriver.node.publishing.mode_transition import LOOK_S, ModeTransitions, kept_off, listed, published, taint
from dradriver.node.publishing.node_objects import NodeObjects
from dradriver.node.publishing.notices import Notices
from dradriver.node.publishing.other_drivers import OTHER_DRIVERS, of_another_vendor, other_owner
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

# During a rolling update two agents of different versions could undo each other's writes for ever. So the first repairs
# are made at once and later ones more and more slowly. Changes of this node's machine are never delayed.
REPAIRS_AT_ONCE: Final = 3
REPAIRS_WITHIN_S: Final = 60.0
_FIRST_DELAY_S: Final = 1.0
_LAST_DELAY_S: Final = 10.0
GONE: Final = names.PREFIX + "instance-gone"  # taint of a MIG instance that a claim has and that does not exist
HOLD_S: Final = 5.0  # time in which a kubelet that starts registers its plugins
ASK_AGAIN_S: Final = 600.0  # an API server that lacks a feature may be upgraded
_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 30.0


class Taints(Protocol):
    """Provides the taints of GPUs."""

    def taints(self) -> Mapping[str, Sequence[dict[str, Any]]]:
        """Return the taints of GPUs by uuid, for their devices in slices."""

    def adopt(self, published: Collection[tuple[str, str]], /) -> None:
        """Let faults that are seen now be in force at once if an earlier agent has published their taints.

        Otherwise the restart of the agent would remove these taints until the faults were seen for long enough. Called
        before ``taints``.

        Args:
            published: Pairs of a device name and the key of its taint.
        """


class LostGpus(Protocol):
    """Provides the GPUs that the node lost, so that its slices name them."""

    def adopt(self, published: Collection[LostGpu], earlier: Machine | None, /) -> None:
        """Add lost GPUs from the published slices, which an earlier agent may have written.

        So the slices still name them after a restart. Called before ``lost``.

        Args:
            published: The lost GPUs.
            earlier: The machine that was published with them; None if unknown.
        """

    def lost(self) -> Sequence[LostGpu]:
        """Return the GPUs that the node lost, for its slices."""


class Publisher:
    """Writes this node's slices while ``run`` runs.

    In the add-on, where another driver allocates the GPUs, the slices describe the machine and have no devices. If a
    driver or plugin hands out the GPUs in addition, there are no slices, except with ``allow_device_plugin``.

    Attributes:
        published: Whether the slices were correct at the last check.
        withheld: If the agent publishes nothing on purpose, the reason; None if slices are published.
    """

    def __init__(
        self,
        client: Client,
        objects: NodeObjects,
        *,
        machine: Callable[[], Machine | None],
        registered: Callable[[], bool],
        modes: ModeTransitions | None = None,
        taints: Taints | None = None,
        events: Recorder | None = None,
        used: Callable[[], Awaitable[Mapping[str, Collection[str]]]] | None = None,
        allow_device_plugin: bool = False,
        refused: Callable[[], str | None] = lambda: None,
        lost: LostGpus | None = None,
    ) -> None:
        """Store the arguments; write nothing yet.

        Args:
            client: The client of the API server, already entered as a context manager.
            objects: This node in the API; followed while ``run`` runs.
            machine: Returns the machine as it is now; None until it was read. While it is None, the slices stay
                unchanged.
            registered: Returns whether the kubelet has the plugin registered.
            modes: Decides whether each GPU is whole, shared or sliced; by default the policies' defaults decide.
            taints: Provides the taints of GPUs; None for no taints.
            events: Writes Events about the node: features that the API server lacks, why nothing is published, GPUs
                that stay whole although the policies file says otherwise.
            used: Returns the names of the devices of prepared claims, by the GPU's uuid.
            allow_device_plugin: Whether to publish even if another program allocates the same GPUs.
            refused: Returns the reason why containers can get no GPU of the machine. None if they can get some, or if
                the machine has no GPU.
            lost: Provides the GPUs that the node lost; None if they are not watched.
        """
        self._client = client
        self._objects = objects
        self._node = objects.name
        self._lost_gpus = lost
        self._machine = machine
        self._registered = registered
        self._taints = taints
        self._notices = Notices(events)
        self._used = used
        self._modes = modes or ModeTransitions(lambda: DEFAULTS, node=objects.name)
        self._features: SliceFeatures | None = None  # fields that the API server keeps; None: ask before the next write
        self._beside = allow_device_plugin
        self._refused = refused
        self._wake = asyncio.Event()  # set to have the slices compared and written now
        self._kubelet_is_up = asyncio.Event()  # cleared while it may be starting
        self._kubelet_is_up.set()
        objects.node_changed.add(self._node_changed)
        objects.slice_changed.add(self._slice_changed)
        self._own: dict[str, str] = {}  # resource versions of our slices as last written or listed, by name
        self._last: tuple[list[pool.Object], int] | None = None  # the slices last published, and their generation
        self._has_gone_instances = False  # whether claims have MIG instances that do not exist
        self._repair_at: asyncio.TimerHandle | None = None  # the next delayed repair of slices that others changed
        self._tolerated: dict[str, frozenset[str]] = {}  # by slice: fields that the API server does not keep
        self._disturbed: collections.deque[float] = collections.deque(maxlen=64)  # when somebody changed our slices
        self.published = False  # whether the API server has all slices as they should be
        self.withheld: str | None = None  # why nothing is published on purpose

    @property
    def settled(self) -> bool:
        """Return whether all slices are published, or nothing is published for a known reason."""
        return self.published or self.withheld is not None

    def whole(self) -> list[str]:
        """Return the uuids of published GPUs without MIG mode.

        Only pods with a claim may use these GPUs. The result is empty if a device plugin may also give the GPUs to
        containers, or if the slices are not published.
        """
        machine = self._machine()
        if machine is None or self._beside or not self.published:
            return []
        return [gpu.uuid for gpu in machine.gpus if gpu.mig is None]

    def poke(self) -> None:
        """Check the slices again, because the machine changed."""
        self._wake.set()

    def registration_changed(self) -> None:
        """Check the slices again, because the kubelet registered the plugin or dropped it."""
        if not self._registered():
            self.published = False
        self._kubelet_is_up.set()
        self._wake.set()

    async def run(self) -> None:
        """Publish the node's slices and correct them, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._objects.run())
            group.create_task(self._keep())

    async def _keep(self) -> None:
        """Write the slices whenever something changed; after an error try again, with growing pauses."""
        await self._objects.synced()
        retry_s = _FIRST_RETRY_S
        while True:
            await self._kubelet_started()
            self._wake.clear()
            try:
                await self._sync()
            except DriverError as error:
                self.published = False
                logger.log(
                    logging.INFO if isinstance(error, ApiError) and error.conflict else logging.WARNING,
                    "The ResourceSlices of this node cannot be written, and are tried again in %.1f s: %s",
                    retry_s,
                    error,
                )
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_again_s()):
                    await self._wake.wait()
                continue
            # Nothing changed for ``ASK_AGAIN_S``: ask the API server again for its features.
            if not self._modes.waiting and not self._has_gone_instances:
                self._features = None

    def _look_again_s(self) -> float | None:
        """Return after how many seconds to check the slices again without a change; None for never.

        The check is needed while a GPU waits for another mode, a MIG instance is missing, or the API server does not
        know a field of slices.
        """
        if self._modes.waiting or self._has_gone_instances:
            return LOOK_S
        return ASK_AGAIN_S if self._features is not None and self._features.lacking else None

    async def _sync(self) -> None:
        """Publish the slices that describe the machine now.

        If there is a reason to publish no GPU, the slices are deleted.
        """
        node, machine = self._objects.node, self._machine()
        if not self._registered() or node is None or machine is None:
            self.published = False
            return

        # 1. Is there a reason to withhold the GPUs?
        # The ledger is the DRA driver that allocates the GPUs, which may be another one.
        other_slices = self._objects.others(current_ledger().driver)
        owner = None if self._beside else other_owner(node, other_slices, machine.vendor)
        withheld = owner or self._refused() or of_another_vendor(machine)
        if withheld != self.withheld:
            self.withheld = withheld
            await self._notices.withheld(node, withheld, twice=owner is not None)

        # 2. Take over taints and lost GPUs that an earlier agent published, before the slices are overwritten.
        if self._taints is not None:
            self._taints.adopt(self._tainted())
        if self._lost_gpus is not None:
            published_lost = lost_gpus.read(self._objects.ours, None)
            self._lost_gpus.adopt(published_lost, self._objects.earlier() if published_lost else None)

        # 3. Build and write the slices. If another driver allocates the GPUs, they have no devices.
        if withheld is not None or not machine.gpus:
            slices = []
        elif current_ledger() is not OURS:
            slices = resource_slices.machine_alone(machine, node=self._node, node_uid=node.metadata.uid)
        else:
            slices = await self._with_devices(node, machine)
        self._has_gone_instances = any(taint["key"] == GONE for taint in _taints(slices))
        if self._lost_gpus is not None:
            lost_gpus.note(slices, self._lost_gpus.lost())
        await self._write(slices)
        self.published = withheld is None
        metrics.DEVICES_PUBLISHED.set(sum(len(obj["spec"].get("devices", ())) for obj in slices))

    async def _with_devices(self, node: Node, machine: Machine) -> list[pool.Object]:
        """Return the slices of a machine whose GPUs this driver allocates."""
        # 1. Which fields of slices the API server keeps: older ones drop what they do not know.
        features = self._features or await feature_probe.ask(self._client, node=self._node, node_uid=node.metadata.uid)
        await self._learn(features)

        # 2. The mode of each GPU. A GPU that changes its mode has a taint until no claim uses it.
        current_slices, used = self._objects.ours, await self._prepared()
        decide = functools.partial(
            self._modes.decide,
            machine,
            labels=node.metadata.labels,
            published=published(current_slices, machine),
            kept_off=kept_off(current_slices, machine),
            used=used,
            able=features,
        )
        taints_of_change = decide()
        # The API server is asked only if its answer may let a GPU change: it reads all claims of the cluster for it.
        if self._modes.to_confirm:
            taints_of_change = decide(allocated=await allocated_devices.devices(self._client, pool=self._node))

        # 3. Events about what the policies ask for and GPUs cannot do; the taints.
        await self._notices.mig_off(node, self._modes.mig_off)
        await self._notices.no_parts(node, self._modes.uncut, machine.vendor)
        taints_of_faults = {} if self._taints is None else self._taints.taints()
        taints = {
            uuid: [*taints_of_faults.get(uuid, ()), *taints_of_change.get(uuid, ())]
            for uuid in {*taints_of_faults, *taints_of_change}
        }
        return resource_slices.build(
            machine,
            node=self._node,
            node_uid=node.metadata.uid,
            taints=taints,
            modes=self._modes.modes,
            # Devices of prepared claims stay published. If these are not known, all that is published stays.
            kept=listed(current_slices) if used is None else used,
            gone=taint(GONE, time.time()),
            features=features,
        )

    async def _prepared(self) -> Mapping[str, Collection[str]] | None:
        """Return the names of the devices of prepared claims by the GPU's uuid; None if they cannot be read now."""
        try:
            return {} if self._used is None else await self._used()
        except (DriverError, OSError) as error:
            logger.warning("The node agent cannot read which claims are prepared: %s", error)
            return None

    def _tainted(self) -> set[tuple[str, str]]:
        return {
            (device.name, taint.key)
            for piece in self._objects.ours
            for device in piece.spec.devices
            for taint in device.taints
        }

    async def _write(self, wanted: list[pool.Object]) -> None:
        selector = f"spec.nodeName={self._node},spec.driver={names.DRIVER}"
        existing: list[dict[str, Any]] = (await self._client.list(RESOURCE_SLICES, field_selector=selector))[0]
        self._own = {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in existing}
        wanted = pool.keep_times(wanted, existing)
        generation = 0 if self._last is None else self._last[1] + (self._last[0] != wanted)
        todo = pool.writes(wanted, existing, least_generation=generation, tolerated=self._tolerated)
        for obj in todo.create:
            await self._note("create", obj, await self._client.create(RESOURCE_SLICES, obj))
        for obj in todo.update:
            await self._note("update", obj, await self._client.update(RESOURCE_SLICES, obj))
        for name, version in todo.delete:
            self._own.pop(name, None)
            await self._client.delete(RESOURCE_SLICES, name, resource_version=version)
            self._count("delete", name)
        if wanted:
            self._last = (wanted, todo.generation)

    async def _note(self, verb: str, sent: pool.Object, stored: pool.Object) -> None:
        """Remember the stored version of a slice, and log once which fields the server did not keep.

        Args:
            verb: ``create`` or ``update``, for the log.
            sent: The slice that was sent.
            stored: The slice that the API server returned.
        """
        name = stored["metadata"]["name"]
        self._own[name] = stored["metadata"]["resourceVersion"]
        self._count(verb, name)
        refused = pool.differences(sent, stored)
        if refused and refused != self._tolerated.get(name):
            logger.warning(
                "The API server does not keep these fields of slice %s: %s", name, ", ".join(sorted(refused))
            )
        self._tolerated[name] = refused
        if self._features is None:
            return
        features = self._features.without(refused)
        if features != self._features:
            await self._learn(features)
            self._wake.set()

    async def _learn(self, features: SliceFeatures) -> None:
        """Store which fields of slices the API server keeps; report those that it drops."""
        await self._notices.lacking(self._objects.node, features.lacking)
        self._features = features

    def _count(self, verb: str, name: str) -> None:
        metrics.SLICE_WRITES.labels(verb).inc()
        logger.info("%s of slice %s done", verb, name)

    async def _kubelet_started(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._kubelet_is_up.wait()
        self._kubelet_is_up.set()

    def _repair(self) -> None:
        """Check the slices again and correct them, because another program changed them.

        The more often other programs changed the slices lately, the longer this method waits before the check.
        """
        loop = asyncio.get_running_loop()
        while self._disturbed and self._disturbed[0] < loop.time() - REPAIRS_WITHIN_S:
            self._disturbed.popleft()
        self._disturbed.append(loop.time())
        late = len(self._disturbed) - REPAIRS_AT_ONCE
        if late <= 0:
            self._wake.set()
            return
        if late == 1:
            logger.warning("Another program keeps changing this node's slices, perhaps a second node agent.")
        if self._repair_at is None or self._repair_at.when() <= loop.time():
            delay_s = wait_s(late - 1, first_s=_FIRST_DELAY_S, longest_s=_LAST_DELAY_S)
            self._repair_at = loop.call_later(delay_s, self._wake.set)

    def _node_changed(self, change: Change[Node]) -> None:
        old, new = change.old, change.new
        if (
            old is None
            or new is None
            or (old.metadata.uid, old.metadata.labels, old.status.allocatable)
            != (new.metadata.uid, new.metadata.labels, new.status.allocatable)
        ):
            self._wake.set()  # a node's heartbeats are none of our concern

    def _slice_changed(self, change: Change[ResourceSlice]) -> None:
        told = change.new or change.old
        assert told is not None
        if told.spec.driver != names.DRIVER:
            if told.spec.driver in OTHER_DRIVERS:
                self._wake.set()
            return
        known = self._own.get(told.metadata.name)
        by_us = known is None if change.new is None else change.new.metadata.resource_version == known
        if by_us:
            return
        if change.new is None:
            self.published = False
            self._kubelet_is_up.clear()  # it deletes them when it starts, and registers plugins later
        self._repair()


def _taints(wanted: Iterable[pool.Object]) -> Iterator[dict[str, Any]]:
    for piece in wanted:
        for device in piece["spec"].get("devices", ()):
            yield from device.get("taints", ())
