"""The controller: reflectors that fill the cluster cache, and the worker that acts on it while this replica leads.

``controller/main.py`` makes and runs it.

A *reflector* lists and watches the objects of one API resource. The *worker* processes pods and gangs, and starts the
writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from dradriver.api.base import gang_barrier_device
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.claims import compute_domains
from dradriver.api.policies.policy_sections import Policies
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.gpus.kueue_topologies import read_topology
from dradriver.cluster.gpus.tabulating import AtOnce
from dradriver.cluster.gpus.taint_rules import read_rule
from dradriver.cluster.records import pod_records, records, slice_records
from dradriver.controller import metrics
from dradriver.controller.audit import Audit
from dradriver.controller.features.recorders import Recorders
from dradriver.controller.features.registry import FeatureOptions, Features
from dradriver.controller.loop.background import always
from dradriver.controller.loop.cluster_gauges import Figures
from dradriver.controller.loop.worker import Worker
from dradriver.controller.reading import unread_claims
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.writing import gang_barrier_slice
from dradriver.controller.writing.release_owner import ReleaseOwner
from dradriver.controller.writing.template_writer import TemplateWriter
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.optional_reflector import OptionalReflector
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    KUEUE_TOPOLOGIES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dradriver.kube.server_clock import ServerClock

logger = logging.getLogger(__name__)

REFRESH_S: Final = 30.0
RULES_S: Final = 5.0  # whoever may not read rules has none; without them pods are placed, and some promises end again


class Source(msgspec.Struct, frozen=True):
    """A kind of object from which the cluster cache is filled.

    Attributes:
        resource: The API resource.
        read: Returns the record to keep, given the JSON of an object.
        changed: Updates the cluster cache after a change of an object.
        fields: The field selector of list and watch; None for all objects.
    """

    resource: Resource
    read: Callable[[msgspec.Raw], Any]
    changed: Callable[[Picture, Change[Any]], None]
    fields: str | None = None


def sources() -> tuple[Source, ...]:
    """Return the kinds of objects that the controller follows.

    There is one entry for each driver whose ResourceSlices are followed: this driver, the driver that allocates the
    GPUs, and the driver of ComputeDomains, NVIDIA's objects for NVLink between nodes. Slices of network cards have
    thousands of devices and are not included: ``NicSlices`` follows them.
    """
    return (
        Source(PODS, pod_records.read, Picture.pod_changed),
        Source(RESOURCE_CLAIMS, records.read_claim, Picture.claim_changed),
        Source(NODES, records.read_node, Picture.node_changed),
        *(
            Source(RESOURCE_SLICES, slice_records.read_slice, Picture.slice_changed, f"spec.driver={driver}")
            for driver in dict.fromkeys((OURS.driver, current_ledger().driver))
        ),
        Source(
            RESOURCE_SLICES, records.read_channels, Picture.channels_changed, f"spec.driver={compute_domains.DRIVER}"
        ),
        Source(DEVICE_CLASSES, records.read_class, Picture.class_changed),
        Source(RESOURCE_CLAIM_TEMPLATES, records.known_template, Picture.template_changed),
    )


class Controller:
    """Runs the reflectors in every replica, and the worker in the leader only.

    So a standby replica has an up-to-date cluster cache when it becomes the leader.
    """

    def __init__(
        self,
        client: Client,
        *,
        deadlines: Deadlines | None = None,
        recorders: Recorders | None = None,
        suspendable: Collection[str] = (),
        tables: AtOnce | None = None,
        features: FeatureOptions | None = None,
        clock: ServerClock | None = None,
        tells_nvsentinel: bool = False,
    ) -> None:
        """Make a controller with an empty cluster cache.

        Args:
            client: The API server.
            deadlines: How long to wait for the scheduler, for pods and for claims.
            recorders: The functions that write Events; None for no Events.
            suspendable: Kinds of owners, such as Job, that the controller may suspend to end their pods.
            tables: Computes the sets of GPUs that pods can get on each type of machine outside the event loop; None to
                compute them in the loop.
            features: The administrator's settings of features.
            clock: Gives the time by which GPU time is counted; None for this machine's clock.
            tells_nvsentinel: Whether pods that get GPUs also get NVSentinel's annotation.
        """
        self._clock = clock
        recorders, options = recorders or Recorders(), features or FeatureOptions()
        self.worker = Worker(
            client,
            deadlines=deadlines,
            recorders=recorders.pods,
            suspendable=suspendable,
            tables=tables,
            clock=clock,
            tells_nvsentinel=tells_nvsentinel,
        )
        self.features = Features(client, self.worker, recorders, options, clock=clock)
        self._unread = unread_claims.UnreadClaims(recorders.unread_claim)
        self._reflectors = {
            source: Reflector[Any](
                client,
                source.resource,
                source.read,
                field_selector=source.fields,
                on_change=functools.partial(self._changed, source),
                on_unread=self._unread.tell if source.resource is RESOURCE_CLAIMS else None,
            )
            for source in sources()
        }
        shown = [(source.resource, reflector.store) for source, reflector in self._reflectors.items()]
        shown += [(RESOURCE_SLICES, reflector.store) for reflector in self.features.reflectors()]
        self.audit = Audit(self.worker.picture, shown)
        self._taint_rules = OptionalReflector(
            client, DEVICE_TAINT_RULES, read_rule, on_change=self.worker.picture.taint_rule_changed
        )
        self._topologies = OptionalReflector(
            client, KUEUE_TOPOLOGIES, read_topology, on_change=self.worker.picture.topology_changed
        )
        self._seats = gang_barrier_slice.SeatSlice(client, self.worker.picture, recorders.barrier)
        self._figures = Figures(self.worker.picture, self.worker.reasons)
        self.template_writer = TemplateWriter(
            client,
            self.worker.picture.templates.known,
            record=recorders.pods.waiting,
            owner=ReleaseOwner(client, options.owner),
        )

    def follow(self, policies: Policies) -> None:
        """Use these policies from now on, to choose GPUs and to order workloads."""
        self.worker.picture.weights = policies.preference
        self.worker.picture.nodes.spot_labels = policies.spot.labels
        self.worker.picture.nccl_changed(policies.nccl.version)
        self.worker.picture.levels_changed(policies.network.levels, policies.network.gbps)
        self.worker.picture.nic_classes_changed(policies.nics.every)
        self.worker.follow(policies)
        self._figures.prices = policies.prices

    def ready(self) -> bool:
        """Return whether the controller has read all objects that ``sources`` names."""
        return all(reflector.synced.is_set() for reflector in self._reflectors.values())

    async def synced(self) -> None:
        """Wait until the controller has read all objects that ``sources`` names.

        Then wait at most ``RULES_S`` seconds until the DeviceTaintRules are read.
        """
        for reflector in self._reflectors.values():
            await reflector.synced.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RULES_S):
                await self._taint_rules.synced()

    async def watch(self) -> None:
        """Keep the controller's cluster cache up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors.values():
                tasks.create_task(reflector.run())
            tasks.create_task(always(self.worker.picture.inventory.tables.run))
            tasks.create_task(always(self._taint_rules.run))
            tasks.create_task(always(self._topologies.run))
            for watch in self.features.watches():
                tasks.create_task(always(watch))
            await self.synced()
            tasks.create_task(always(self.audit.run))

    async def work(self) -> None:
        """Lead as the controller of the cluster until cancelled.

        Only one replica leads at a time. If two lead for a moment, they do no harm: the API server refuses outdated
        writes.
        """
        await self.synced()
        await self._catch_up()
        if self._clock is not None:
            self._clock.set()  # by the answer that has just come
        metrics.LEADER.set(1)
        try:
            await self._lead()
        finally:
            metrics.LEADER.set(0)

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(always(self._unread.run))
            tasks.create_task(always(self._figures.run))
            if current_ledger() is OURS:  # another driver's claims have no device of ours
                self.worker.picture.barrier = None
                tasks.create_task(always(self._seats.run))
                tasks.create_task(self._seats.first_look())
            await self.features.lead(tasks)
            tasks.create_task(self.template_writer.run())
            tasks.create_task(self.worker.run())

    def _changed(self, source: Source, change: Change[Any]) -> None:
        source.changed(self.worker.picture, change)
        if self.worker.acts:
            self.worker.placed.seen(change.old, change.new)
        if source.resource is PODS:
            self.template_writer.pod_changed(change)
        elif source.resource is RESOURCE_CLAIM_TEMPLATES:
            self.template_writer.template_changed(change)
        elif source.resource is DEVICE_CLASSES and change.key[1] == gang_barrier_device.CLASS:
            self._seats.wake()

    async def _catch_up(self) -> None:
        """Read all claims again before this replica leads.

        The reflectors may not have shown the last claims of the previous leader yet. Other stale objects do no harm:
        each patch names the pod's version, and the API server refuses an outdated version.
        """
        while True:
            try:
                for source, reflector in self._reflectors.items():
                    if source.resource is RESOURCE_CLAIMS:
                        await reflector.refresh(REFRESH_S)
                return
            except DriverError as error:
                logger.warning("This replica has the lease and cannot start to lead: %s. It tries again.", error)
                await asyncio.sleep(1.0)
