"""The live cluster cache that decisions are made from.

It has the objects that reflectors read. The controller's own writes are in it at once. The controller and ``gputopo``
use it.

A *tentative placement* is the node and GPUs that are chosen for a pod whose claim the scheduler has not allocated yet.
To *look again* at a pod means that the controller decides its next step again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from dradriver.api.base.objects import Node
from dradriver.api.base.pods import Pod
from dradriver.api.claims.claim_templates import Template
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.accounting import Books
from dradriver.cluster.gpus.kueue_topologies import KueueTopology
from dradriver.cluster.gpus.tabulating import AtOnce
from dradriver.cluster.gpus.taint_rules import TaintRule
from dradriver.cluster.nics.nic_devices import NicSlice
from dradriver.cluster.pods.volumes import Found
from dradriver.cluster.records.object_versions import is_truth, older
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.pod_records import Foreign, Grouped
from dradriver.cluster.records.records import ChannelSlice, ClaimRecord, DeviceClass
from dradriver.cluster.records.slice_records import SliceRecord
from dradriver.kube.reflector import Change


class Picture(Books):
    """The cluster cache: pods, claims, nodes and GPUs as they are now.

    A write of this controller counts at once (``assume_claim``, ``assume_pod``), before a reflector shows it. A
    tentative placement (``promise``) counts even before the write. Otherwise the next pod could get the same GPUs or
    CPU.
    """

    def __init__(
        self,
        touch: Callable[[Key], None],
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] | None = None,
        tables: AtOnce | None = None,
        partition_of: Callable[[str], str] | None = None,
    ) -> None:
        """Make an empty cluster cache.

        Args:
            touch: Called with the key of each pod that the controller must look at again.
            wake: Called after changes that may make room for any pod.
            clock: Returns seconds since the epoch, for GPU time; the system's clock by default.
            tables: Computes the allocator's tables (bandwidths of GPU sets) for each kind of machine; None computes
                them at their first use.
            partition_of: Returns the tenant whose own GPUs (partition) a namespace must use, see ``Views``.
        """
        super().__init__(touch, wake, clock=clock, tables=tables, partition_of=partition_of)
        self.inventory.tables.made.add(self.tables_made)
        self._assumed_pods: dict[Key, float] = {}
        self._classes: dict[str, frozenset[str]] = {}

    @property
    def generation(self) -> int:
        """Return a number that grows with each change of nodes, GPUs or their use.

        A ``Snapshot`` stores this number at its creation. If the number has grown since, the snapshot is out of date.
        """
        return self.nodes.generation + self.inventory.generation

    # What reflectors see.

    def pod_changed(self, change: Change[Pod | Foreign]) -> None:
        """Update the cluster cache with a pod change from the reflector."""
        key, old, new = change.key, change.old, change.new
        if isinstance(old, Foreign) and old.node:
            self.nodes.give(old.node, old.takes)
        if isinstance(new, Foreign) and new.node:
            self.nodes.take(new.node, new.takes)
        before, after = (each if isinstance(each, Foreign) else None for each in (old, new))
        if before is not None or after is not None:
            self.neighbours.foreign_changed(before, after)
        for gang in self.gangs.other_changed(key, new.group if isinstance(new, Grouped) else ""):
            self._touch(gang)
        ours = new if isinstance(new, Pod) else None
        if key in self._assumed_pods:
            known = self.pods[key]
            is_older = ours is not None and ours.metadata.uid == known.metadata.uid and older(ours, known)
            if is_older and not is_truth(change, self._assumed_pods[key]):
                return  # from before our own write
            del self._assumed_pods[key]
        if ours is not None or key in self.pods:
            self._set_pod(key, ours)
        self._tell()

    def claim_changed(self, change: Change[ClaimRecord]) -> None:
        """Update the cluster cache with a claim change from the reflector."""
        if self.accounts.shows(change):
            self._set_claim(change.key, change.new)
            self._tell()

    def node_changed(self, change: Change[Node]) -> None:
        """Update the cluster cache with a node change from the reflector."""
        name = change.key[1]
        self.nodes.set_node(name, change.new)
        if change.old is None or change.new is None:
            self.inventory.set_node(name)
        else:
            self.fleets.relabelled(name)
        self._tell()

    def slice_changed(self, change: Change[SliceRecord]) -> None:
        """Update the cluster cache with a ResourceSlice change from the reflector."""
        self.offered.slice_changed(change)
        self._tell()

    def channels_changed(self, change: Change[ChannelSlice]) -> None:
        """Update the cluster cache with a changed ResourceSlice of multi-node NVLink channels."""
        self.channels.slice_changed(change)
        self._tell()

    def taint_rule_changed(self, change: Change[TaintRule]) -> None:
        """Update the cluster cache with a DeviceTaintRule change from the reflector."""
        self.offered.rule_changed(change)
        self.nics.rule_changed(change)
        self._tell()

    def tables_made(self, node: str) -> None:
        """Make a node available for placement, because the bandwidths of its GPU sets are computed.

        They are in the allocator's tables for the node's kind of machine, which another process makes.
        """
        self.offered.tables_made(node)
        self._tell()

    def class_changed(self, change: Change[DeviceClass]) -> None:
        """Update the cluster cache with a DeviceClass change from the reflector."""
        name = change.key[1]
        if change.new is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = change.new.resources
        self.nodes.claimable = frozenset().union(*self._classes.values())
        self.nics.class_changed(name, None if change.new is None else change.new.selectors)
        self._tell()

    def template_changed(self, change: Change[Template]) -> None:
        """Update the cluster cache with a ResourceClaimTemplate change from the reflector."""
        self.templates.changed(change.key, change.new)
        self._touch_made_by(change.key)

    def template_read(self, key: Key, template: Template | None) -> None:
        """Update the cluster cache with the full spec of a template that a waiting pod names.

        ``key`` is the template's namespace and name. ``template`` is None if the template does not exist.
        """
        self.templates.read(key, template)
        self._touch_made_by(key)

    def nics_changed(self, change: Change[NicSlice]) -> None:
        """Update the cluster cache with a change of a NIC driver's ResourceSlice."""
        self.nics.slice_changed(change)
        self._tell()

    def nics_read(self, driver: str) -> None:
        """Update the cluster cache once all slices of a NIC driver are known. Waiting pods are then tried again.

        Until then, pods that request NICs of this driver wait.
        """
        self.nics.read(driver)
        for name in self.inventory.pools():
            self.nodes.helped(name)
        for claim in self.nics.claims():
            self._touch_pods_of(claim)
        self._tell()

    def volume_read(self, claim: Key, found: Found | None) -> None:
        """Update the cluster cache with the nodes that can reach a PersistentVolumeClaim's volume.

        ``claim`` is the PersistentVolumeClaim's namespace and name. ``found`` has conditions on the nodes, or says that
        there is no volume yet. It is None if the API server did not answer.
        """
        if self.volumes.read(claim, found):
            for pod in sorted(self.volumes.pods(claim) or ()):
                self._touch(pod)
            self.version += 1

    def find_out_no_more(self) -> None:
        """End a new leader's check whether gang barriers work, and look at all gangs again.

        A gang barrier is a device that keeps a pod unbound until its whole gang can start. All gangs have waited for
        this check. If the check had no result (``barrier`` is None), the leader works without gang barriers.
        """
        if self.barrier is None:
            self.barrier = False
        for gang in self.gangs:
            self._touch(gang)

    # What is configured.

    def nccl_changed(self, version: str) -> None:
        """Set the NCCL version that jobs use (``Machine.nccl_version``).

        Args:
            version: The version, such as ``2.23.4``; empty for the newest.
        """
        self.inventory.set_nccl_version(version)
        self._tell()

    def nic_classes_changed(self, classes: Mapping[str, str]) -> None:
        """Set the DeviceClasses that select NICs, each with the short name of its NIC driver.

        With other classes, the same template can request other devices. The controller looks again at the pods that
        name such a template.
        """
        for template in self.templates.set_nic_classes(classes):
            self._touch_made_by(template)

    def levels_changed(self, keys: Sequence[str], gbps_of: Mapping[str, float]) -> None:
        """Set the label keys and rates of the network's levels, such as rack and block.

        ``keys`` are the configured node labels, nearest level first. ``gbps_of`` has the rate of each level in GB/s, by
        label key.
        """
        self.fleets.set_levels(keys, gbps_of)
        self._tell()

    def topology_changed(self, change: Change[KueueTopology]) -> None:
        """Update the cluster cache with a change of a Kueue Topology, which names network levels."""
        self.fleets.topology_changed(change)
        self._tell()

    # What we write.

    def promise(self, claim: Key, pod: Key, placement: Placement) -> None:
        """Count a pod's tentative placement for a claim until ``assume_claim`` or ``release``.

        The controller calls this before it creates the claim.
        """
        self.accounts.intend(claim, pod, placement)
        self._rehold(claim)

    def release(self, claim: Key) -> None:
        """Stop counting a tentative placement, because its claim was not created."""
        if self.accounts.release(claim):
            self._rehold(claim)
            self._tell()

    def joins(self, pod: Key, node: str) -> None:
        """Count a pod's resources on the node of the shared claim that it will use.

        Without this, another pod could get the same CPU and memory. The resources count there until ``joined`` is
        called.
        """
        self.accounts.join(pod, node)
        self._recount(pod)

    def joined(self, pod: Key) -> None:
        """Stop counting a pod as one that is about to use a shared claim (``joins``).

        The pod uses the claim now and is counted with it, or the attempt failed.
        """
        self.accounts.joined(pod)
        self._recount(pod)
        self._tell()

    def assume_claim(self, claim: ClaimRecord) -> None:
        """Count a claim that the API server returned, before the reflector shows it."""
        now = self.accounts.answered(claim)
        if now is None:
            self._rehold(claim.key)
            return
        self._set_claim(claim.key, now)
        if claim.key in self.accounts.assumed:
            self._tell()

    def assume_deleted(self, claim: ClaimRecord) -> None:
        """Count a claim as deleted before the reflector shows it. It uses nothing any more."""
        if (leaving := self.accounts.deleted(claim)) is not None:
            self._set_claim(claim.key, leaving)
            self._tell()

    def correct_claim(self, key: Key, claim: ClaimRecord | None) -> None:
        """Replace a claim that the cache has only from our own write.

        The garbage collector calls this with the claim that the API server has now. Nothing happens if a reflector has
        shown the claim since our write.

        Args:
            key: The claim.
            claim: The claim that exists now under this name; None if there is none.
        """
        if self.accounts.assumed.pop(key, None) is not None:
            self._set_claim(key, claim)
            self._tell()

    def assume_pod(self, pod: Pod, *, was: Pod) -> None:
        """Count a pod that the API server returned, before the reflector shows it.

        Args:
            pod: The pod as the API server returned it.
            was: The pod in the cache when the write began. If the cache has another object now, the reflector was
                faster, and that object may be newer than ``pod``. Then nothing changes.
        """
        key = pod.metadata.namespace, pod.metadata.name
        if self.pods.get(key) is was:
            self._assumed_pods[key] = asyncio.get_running_loop().time()
            self._set_pod(key, pod)

    def pod_is_ahead(self, key: Key) -> bool:
        """Return whether the reflector has not shown our own last write of a pod yet.

        ``key`` is the pod's namespace and name.
        """
        return key in self._assumed_pods
