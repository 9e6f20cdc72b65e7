"""The live cache of the cluster that decisions are made from: what reflectors show and, at once, our own writes."""

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
    """Pods, claims, nodes and GPUs as they are now: the books, as reflectors and writers have them written.

    What this controller wrote counts at once (``assume_claim``, ``assume_pod``), until a reflector shows it, and what
    it is about to write, too (``promise``): between the two, the next pod must not be promised the same GPUs or CPU.
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
        """Make an empty picture.

        Args:
            touch: Called with the key of each pod that has to be looked at again.
            wake: Called after changes that may make a place for any pod.
            clock: Returns seconds since the epoch, for GPU time; the system's by default.
            tables: Makes the tables of machines; None to make them where they are needed.
            partition_of: See ``Views``.
        """
        super().__init__(touch, wake, clock=clock, tables=tables, partition_of=partition_of)
        self.inventory.tables.made.add(self.tables_made)
        self._assumed_pods: dict[Key, float] = {}
        self._classes: dict[str, frozenset[str]] = {}

    @property
    def generation(self) -> int:
        """Return the generation of the cluster cache: another number after each change of nodes, GPUs, or their use."""
        return self.nodes.generation + self.inventory.generation

    # What reflectors see.

    def pod_changed(self, change: Change[Pod | Foreign]) -> None:
        """Update the cluster cache by what the pods' reflector saw."""
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
        """Update the cluster cache by what the claims' reflector saw."""
        if self.accounts.shows(change):
            self._set_claim(change.key, change.new)
            self._tell()

    def node_changed(self, change: Change[Node]) -> None:
        """Update the cluster cache by what the nodes' reflector saw."""
        name = change.key[1]
        self.nodes.set_node(name, change.new)
        if change.old is None or change.new is None:
            self.inventory.set_node(name)
        else:
            self.fleets.relabelled(name)
        self._tell()

    def slice_changed(self, change: Change[SliceRecord]) -> None:
        """Update the cluster cache by what the slices' reflector saw."""
        self.offered.slice_changed(change)
        self._tell()

    def channels_changed(self, change: Change[ChannelSlice]) -> None:
        """Update the cluster cache by what the reflector of slices with multi-node NVLink channels saw."""
        self.channels.slice_changed(change)
        self._tell()

    def taint_rule_changed(self, change: Change[TaintRule]) -> None:
        """Update the cluster cache by what the reflector of DeviceTaintRules saw."""
        self.offered.rule_changed(change)
        self.nics.rule_changed(change)
        self._tell()

    def tables_made(self, node: str) -> None:
        """Update the cluster cache once the tables of a node's machine are made: pods can be placed on it."""
        self.offered.tables_made(node)
        self._tell()

    def class_changed(self, change: Change[DeviceClass]) -> None:
        """Update the cluster cache by what the device classes' reflector saw."""
        name = change.key[1]
        if change.new is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = change.new.resources
        self.nodes.claimable = frozenset().union(*self._classes.values())
        self.nics.class_changed(name, None if change.new is None else change.new.selectors)
        self._tell()

    def template_changed(self, change: Change[Template]) -> None:
        """Update the cluster cache by what the templates' reflector saw."""
        self.templates.changed(change.key, change.new)
        self._touch_made_by(change.key)

    def template_read(self, key: Key, template: Template | None) -> None:
        """Update the cluster cache by a whole template that was read, None if it does not exist."""
        self.templates.read(key, template)
        self._touch_made_by(key)

    def nics_changed(self, change: Change[NicSlice]) -> None:
        """Update the cluster cache by what the reflector of a NIC driver's slices saw."""
        self.nics.slice_changed(change)
        self._tell()

    def nics_read(self, driver: str) -> None:
        """Update the cluster cache once all slices of a NIC driver are known: who waited may have a place."""
        self.nics.read(driver)
        for name in self.inventory.pools():
            self.nodes.helped(name)
        for claim in self.nics.claims():
            self._touch_pods_of(claim)
        self._tell()

    def volume_read(self, claim: Key, found: Found | None) -> None:
        """Update the cluster cache by where a claim's volume is, None if that cannot be read."""
        if self.volumes.read(claim, found):
            for pod in sorted(self.volumes.pods(claim) or ()):
                self._touch(pod)
            self.version += 1

    def find_out_no_more(self) -> None:
        """Update the cluster cache once a leader knows of the gang barrier, or goes without: gangs waited for that."""
        if self.barrier is None:
            self.barrier = False
        for gang in self.gangs:
            self._touch(gang)

    # What is configured.

    def nccl_changed(self, version: str) -> None:
        """Update the cluster cache by the NCCL version that jobs run (``Machine.nccl_version``).

        Args:
            version: As ``topology.nccl_version.release`` reads it; empty for the newest.
        """
        self.inventory.set_nccl_version(version)
        self._tell()

    def nic_classes_changed(self, classes: Mapping[str, str]) -> None:
        """Update the cluster cache by which DeviceClasses are of NICs: templates are read by them."""
        for template in self.templates.set_nic_classes(classes):
            self._touch_made_by(template)

    def levels_changed(self, keys: Sequence[str], gbps_of: Mapping[str, float]) -> None:
        """Update the cluster cache by the configured label keys of the network's levels, and what they carry."""
        self.fleets.set_levels(keys, gbps_of)
        self._tell()

    def topology_changed(self, change: Change[KueueTopology]) -> None:
        """Update the cluster cache by what the reflector of Kueue's Topologies saw."""
        self.fleets.topology_changed(change)
        self._tell()

    # What we write.

    def promise(self, claim: Key, pod: Key, placement: Placement) -> None:
        """Count a claim in the cluster cache that is about to be created, until ``assume_claim`` or ``release``."""
        self.accounts.intend(claim, pod, placement)
        self._rehold(claim)

    def release(self, claim: Key) -> None:
        """Remove a claim from the cluster cache that was to be created and was not."""
        if self.accounts.release(claim):
            self._rehold(claim)
            self._tell()

    def joins(self, pod: Key, node: str) -> None:
        """Count a pod in the cluster cache on the node of the shared claim that it is coming to, until ``joined``."""
        self.accounts.join(pod, node)
        self._recount(pod)

    def joined(self, pod: Key) -> None:
        """Count a pod in the cluster cache by itself again: it came to a shared claim, or did not."""
        self.accounts.joined(pod)
        self._recount(pod)
        self._tell()

    def assume_claim(self, claim: ClaimRecord) -> None:
        """Count a claim in the cluster cache, as the API server returned it, before the reflector shows it."""
        now = self.accounts.answered(claim)
        if now is None:
            self._rehold(claim.key)
            return
        self._set_claim(claim.key, now)
        if claim.key in self.accounts.assumed:
            self._tell()

    def assume_deleted(self, claim: ClaimRecord) -> None:
        """Count a claim in the cluster cache as deleted before the reflector shows it: it holds nothing any more."""
        if (leaving := self.accounts.deleted(claim)) is not None:
            self._set_claim(claim.key, leaving)
            self._tell()

    def correct_claim(self, key: Key, claim: ClaimRecord | None) -> None:
        """Replace a claim in the cluster cache that does not exist any more by what there is in its place."""
        if self.accounts.assumed.pop(key, None) is not None:
            self._set_claim(key, claim)
            self._tell()

    def assume_pod(self, pod: Pod, *, was: Pod) -> None:
        """Count a pod in the cluster cache, as the API server returned it, before the reflector shows it.

        If the picture is not what it ``was`` when the write began, the reflector was faster and may be ahead already.
        """
        key = pod.metadata.namespace, pod.metadata.name
        if self.pods.get(key) is was:
            self._assumed_pods[key] = asyncio.get_running_loop().time()
            self._set_pod(key, pod)

    def pod_is_ahead(self, key: Key) -> bool:
        """Return whether the cluster cache has an answer to our own write of a pod that no reflector has shown yet."""
        return key in self._assumed_pods
