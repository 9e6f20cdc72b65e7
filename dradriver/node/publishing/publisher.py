"""Keeping this node's ResourceSlices as they should be.

They are published only while the kubelet has the plugin registered: before that they would attract pods that the
kubelet then refuses. The kubelet deletes them when it starts, before it registers plugins, and 30 s after the plugin is
gone; a watch notices. At the agent's end nothing is deleted, so that a restart within those 30 s goes unnoticed.
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
from dradriver.api.policies.model import DEFAULTS
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

# Two instances of different versions, side by side during a rolling update, could undo each other's writes.
# So the first repairs are done at once and later ones more and more slowly; what our own machine says is never delayed.
REPAIRS_AT_ONCE: Final = 3
REPAIRS_WITHIN_S: Final = 60.0
_FIRST_DELAY_S: Final = 1.0
_LAST_DELAY_S: Final = 10.0
GONE: Final = names.PREFIX + "instance-gone"  # taint of a MIG instance that a claim has and nobody made again
HOLD_S: Final = 5.0  # a kubelet that starts has registered its plugins by then
ASK_AGAIN_S: Final = 600.0  # a server that lacks something may be upgraded
_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 30.0


class Taints(Protocol):
    """Which taints GPUs should have."""

    def taints(self) -> Mapping[str, Sequence[dict[str, Any]]]:
        """Return the taints of GPUs to publish, by uuid."""

    def adopt(self, published: Collection[tuple[str, str]], /) -> None:
        """Take over the published taints, as names of devices with keys, before ``taints`` is called."""


class LostGpus(Protocol):
    """Which GPUs the node lost."""

    def adopt(self, published: Collection[LostGpu], earlier: Machine | None, /) -> None:
        """Take over the published lost GPUs, maybe of an earlier agent, and their machine, before ``lost``."""

    def lost(self) -> Sequence[LostGpu]:
        """Return the lost GPUs to publish."""


class Publisher:
    """Writes this node's slices while ``run`` runs: the machine alone where another driver hands out the GPUs.

    Attributes:
        published: Whether the slices were as they should be when last looked at.
        withheld: Why nothing is published although it could be; None where that is not so.
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
        beside_device_plugin: bool = False,
        refused: Callable[[], str | None] = lambda: None,
        lost: LostGpus | None = None,
    ) -> None:
        """Write nothing yet.

        Args:
            client: An entered client.
            objects: This node in the API; followed while ``run`` runs.
            machine: Gives the machine as it is now; None until it was read, which leaves the slices as they are.
            registered: Whether the kubelet has the plugin registered.
            modes: As what each GPU is handed out; by default as the defaults of the policies say.
            taints: The taints of GPUs; without it there are none.
            events: Writes Events about the node: of what the API server lacks, of why nothing is published, and of GPUs
                that stay whole although the policies file says otherwise.
            used: Gives the names of the devices of prepared claims by the GPU's uuid.
            beside_device_plugin: Publish even where something else hands out the same GPUs.
            refused: Says why none of the machine's GPUs can be handed out; None where they can, or there are none.
            lost: The GPUs that the node lost; without it none is known.
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
        self._changing = modes or ModeTransitions(lambda: DEFAULTS, node=objects.name)
        self._able: SliceFeatures | None = None  # what the API server keeps; None until it was asked
        self._beside = beside_device_plugin
        self._refused = refused
        self._wake = asyncio.Event()
        self._kubelet_is_up = asyncio.Event()  # cleared while it may be starting
        self._kubelet_is_up.set()
        objects.node_changed.add(self._node_changed)
        objects.slice_changed.add(self._slice_changed)
        self._own: dict[str, str] = {}  # resource versions of our slices as we know them, by name
        self._last: tuple[list[pool.Object], int] | None = None  # what was published, and its generation
        self._lost = False  # whether claims have MIG instances that are gone
        self._repair_at: asyncio.TimerHandle | None = None
        self._tolerated: dict[str, frozenset[str]] = {}
        self._disturbed: collections.deque[float] = collections.deque(maxlen=64)  # when somebody changed our slices
        self.published = False
        self.withheld: str | None = None

    @property
    def settled(self) -> bool:
        """Return whether all slices are published, or deliberately not."""
        return self.published or self.withheld is not None

    def whole(self) -> list[str]:
        """Return the uuids of published GPUs outside MIG mode, which only pods with a claim may use."""
        machine = self._machine()
        if machine is None or self._beside or not self.published:
            return []
        return [gpu.uuid for gpu in machine.gpus if gpu.mig is None]

    def poke(self) -> None:
        """Publish again: the machine changed."""
        self._wake.set()

    def registration_changed(self) -> None:
        """Publish again: the kubelet registered the plugin, or dropped it."""
        if not self._registered():
            self.published = False
        self._kubelet_is_up.set()
        self._wake.set()

    async def run(self) -> None:
        """Keep the node's slices right until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._objects.run())
            group.create_task(self._keep())

    async def _keep(self) -> None:
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
                    "the slices are not written; again in %.1f s: %s",
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
            if not self._changing.waiting and not self._lost:
                self._able = None

    def _look_again_s(self) -> float | None:
        if self._changing.waiting or self._lost:
            return LOOK_S
        return ASK_AGAIN_S if self._able is not None and self._able.lacking else None

    async def _sync(self) -> None:
        node, machine = self._objects.node, self._machine()
        if not self._registered() or node is None or machine is None:
            self.published = False
            return
        others = self._objects.others(current_ledger().driver)
        owner = None if self._beside else other_owner(node, others, machine.vendor)
        withheld = owner or self._refused() or of_another_vendor(machine)
        if withheld != self.withheld:
            self.withheld = withheld
            await self._notices.withheld(node, withheld, twice=owner is not None)
        if self._taints is not None:
            self._taints.adopt(self._tainted())
        if self._lost_gpus is not None:
            published_lost = lost_gpus.read(self._objects.ours, None)
            self._lost_gpus.adopt(published_lost, self._objects.earlier() if published_lost else None)
        if withheld is not None or not machine.gpus:
            wanted = []
        elif current_ledger() is not OURS:
            wanted = resource_slices.machine_alone(machine, node=self._node, node_uid=node.metadata.uid)
        else:
            wanted = await self._handed_out(node, machine)
        self._lost = any(taint["key"] == GONE for taint in _taints(wanted))
        if self._lost_gpus is not None:
            lost_gpus.note(wanted, self._lost_gpus.lost())
        await self._write(wanted)
        self.published = withheld is None
        metrics.DEVICES_PUBLISHED.set(sum(len(obj["spec"].get("devices", ())) for obj in wanted))

    async def _handed_out(self, node: Node, machine: Machine) -> list[pool.Object]:
        """Return the slices of a machine whose GPUs this driver hands out."""
        able = self._able or await feature_probe.ask(self._client, node=self._node, node_uid=node.metadata.uid)
        await self._learn(able)
        ours, used = self._objects.ours, await self._prepared()
        decide = functools.partial(
            self._changing.decide,
            machine,
            labels=node.metadata.labels,
            published=published(ours, machine),
            kept_off=kept_off(ours, machine),
            used=used,
            able=able,
        )
        changing = decide()
        if self._changing.ripe:
            changing = decide(allocated=await allocated_devices.devices(self._client, pool=self._node))
        await self._notices.mig_off(node, self._changing.mig_off)
        await self._notices.no_parts(node, self._changing.uncut, machine.vendor)
        taints = {} if self._taints is None else self._taints.taints()
        return resource_slices.build(
            machine,
            node=self._node,
            node_uid=node.metadata.uid,
            taints={uuid: [*taints.get(uuid, ()), *changing.get(uuid, ())] for uuid in {*taints, *changing}},
            modes=self._changing.modes,
            kept=listed(ours) if used is None else used,
            gone=taint(GONE, time.time()),
            features=able,
        )

    async def _prepared(self) -> Mapping[str, Collection[str]] | None:
        """Return the names of the devices of prepared claims by the GPU's uuid; None where that is not known now."""
        try:
            return {} if self._used is None else await self._used()
        except (DriverError, OSError) as error:
            logger.warning("what is prepared is not known: %s", error)
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
        """Remember what the server made of a write, and say once what it did not take."""
        name = stored["metadata"]["name"]
        self._own[name] = stored["metadata"]["resourceVersion"]
        self._count(verb, name)
        refused = pool.differences(sent, stored)
        if refused and refused != self._tolerated.get(name):
            logger.warning(
                "the API server does not keep these fields of slice %s: %s", name, ", ".join(sorted(refused))
            )
        self._tolerated[name] = refused
        if self._able is not None and (left := self._able.without(refused)) != self._able:
            await self._learn(left)
            self._wake.set()

    async def _learn(self, able: SliceFeatures) -> None:
        """Take in what the server keeps."""
        await self._notices.lacking(self._objects.node, able.lacking)
        self._able = able

    def _count(self, verb: str, name: str) -> None:
        metrics.SLICE_WRITES.labels(verb).inc()
        logger.info("%s of slice %s done", verb, name)

    async def _kubelet_started(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._kubelet_is_up.wait()
        self._kubelet_is_up.set()

    def _repair(self) -> None:
        """Look again, the later the more often somebody else changed our slices lately."""
        loop = asyncio.get_running_loop()
        while self._disturbed and self._disturbed[0] < loop.time() - REPAIRS_WITHIN_S:
            self._disturbed.popleft()
        self._disturbed.append(loop.time())
        late = len(self._disturbed) - REPAIRS_AT_ONCE
        if late <= 0:
            self._wake.set()
            return
        if late == 1:
            logger.warning("somebody else keeps changing this node's slices (another instance of the node agent?)")
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
