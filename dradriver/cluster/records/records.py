"""The records that the controller keeps of claims, nodes, classes and templates.

They contain only what decisions need. Annotations and labels of foreign objects, up to 256 KiB each, are not kept.

A *pin* is the devices that the controller chose for a claim. A *gang barrier device* in a pod's claim keeps the pod
unbound until its whole gang can start. A node's *channel* is the device that a pod needs to use NVLink between nodes.
"""

from __future__ import annotations

import functools
import sys
from typing import Final

import msgspec

from dradriver.allocator.request import Whole
from dradriver.api.base import gang_barrier_device, names, same_spec
from dradriver.api.base.dra_objects import Allocation, ResourceSlice
from dradriver.api.base.gang_barrier_device import Seat
from dradriver.api.base.objects import Metadata, Node
from dradriver.api.claims import (
    claim_builder,
    claim_templates,
    compute_domains,
    gang_plan_note,
    idleness,
    pins,
    preemption_note,
)
from dradriver.api.claims.claim_templates import Template
from dradriver.api.claims.gang_plan_note import Planned
from dradriver.api.claims.idleness import Idle
from dradriver.api.claims.pins import Claim, Key, Pin, Usage
from dradriver.api.claims.preemption_note import Preempts
from dradriver.api.pod import claim_alternatives
from dradriver.api.vocabulary import nic_requests
from dradriver.api.vocabulary.nic_requests import Given
from dradriver.cluster.nodes.pod_demands import Where, size_of, terms_of
from dradriver.kube import codec

MOST_TERMS: Final = 200  # and expressions and values, of one allocation; the scheduler alone judges one with more


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The record of a claim.

    Attributes:
        metadata: Metadata without labels and annotations.
        handed_over: For a claim without a pin, which leaves the choice of devices to the scheduler, a digest of the
            spec that was written; else empty.
        ours: Whether the controller wrote it with a choice of devices. An admission policy forbids the label and the
            choice to others. False for a claim that was handed over.
        owners: Name and uid of the pod that owns it, or of all pods that share it.
        pin: The devices that it is pinned to; None if the claim is not ours, or damaged.
        devices: The devices of the allocating driver that the scheduler allocated; None while it is not allocated.
        preempts: The pods that must end before it can be allocated; None for none.
        allocated_at: When it was allocated, in the API's time format; empty if that is not written.
        users: Uids of the objects that it is reserved for.
        set: The request that its GPUs were chosen for, if pods share it; None if it belongs to one pod.
        planned: Its place in the plan of its pod's gang, which lists the places of all pods; None for a single pod.
        seat: The gang barrier device that it was allocated; None for none.
        idle: The node agent's report that all its devices are idle; None without a report.
        idle_end: When the controller will end its pods because they are idle, in seconds since the epoch; None if it
            will not.
        channels: The nodes whose channel of multi-node NVLink it was allocated.
        nics: The NICs of other drivers that the scheduler allocated to it.
        where: For an allocated claim that the controller did not write, the conditions on nodes that can use it; else
            None.
    """

    metadata: Metadata
    ours: bool
    owners: tuple[tuple[str, str], ...]
    pin: Pin | None
    devices: dict[pins.Device, Usage] | None
    users: tuple[str, ...]
    handed_over: str = ""
    set: Whole | None = None
    planned: Planned | None = None
    seat: Seat | None = None
    preempts: Preempts | None = None
    allocated_at: str = ""
    idle: Idle | None = None
    idle_end: float | None = None
    channels: tuple[str, ...] = ()
    nics: tuple[Given, ...] = ()
    where: Where | None = None

    @property
    def key(self) -> Key:
        """Return the claim's namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def uid(self) -> str:
        """Return the claim's uid. A later claim can have the same name, but not the same uid."""
        return self.metadata.uid

    @property
    def deleting(self) -> bool:
        """Return whether the claim is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def counts(self) -> bool:
        """Return whether the cluster cache counts what the claim uses.

        The claim is counted if it is ``ours``, or if GPUs, NICs or NVLink channels are allocated to it.
        """
        return bool(self.ours or self.devices or self.channels or self.nics)

    @property
    def has_nics(self) -> bool:
        """Return whether the claim was allocated NICs, or is pinned to some."""
        return bool(self.nics or (self.pin is not None and self.pin.nics))

    def owned_by(self, uid: str) -> bool:
        """Return whether the pod with this uid owns or shares the claim."""
        return any(owner[1] == uid for owner in self.owners)


def claim_record(claim: Claim) -> ClaimRecord:
    """Return the record that the cache keeps of a claim."""
    label, annotations = claim.metadata.labels.get(names.LABEL), claim.metadata.annotations
    ours = label == names.LABEL_PLACED and names.CHOICE in annotations
    is_handed_over = label == names.LABEL_HANDED_OVER
    allocation = claim.status.allocation
    drivers = set() if allocation is None else {result.driver for result in allocation.devices.results}
    # Hardly any claim has a device that its node's agent reports as idle. So look for the mark before decoding.
    says_idle = any(idleness.MARK in bytes(status.data) for status in claim.status.devices)
    return ClaimRecord(
        metadata=claim.metadata.bare,
        ours=ours,
        owners=pins.owners(claim),
        pin=pins.pin(claim) if ours else None,
        devices=None if allocation is None else pins.allocated(claim),
        users=tuple(consumer.uid for consumer in claim.status.reserved_for),
        handed_over=annotations.get(names.HANDED_OVER, "") if is_handed_over else "",
        set=claim_builder.read_set(annotations[names.SET]) if ours and names.SET in annotations else None,
        planned=gang_plan_note.read(claim) if ours and names.PLAN in annotations else None,
        seat=gang_barrier_device.of(claim),
        preempts=preemption_note.read(claim) if ours and names.PREEMPTS in annotations else None,
        allocated_at="" if allocation is None else allocation.allocation_timestamp,
        idle=idleness.idle_of(claim) if says_idle else None,
        idle_end=idleness.asked(annotations) if names.IDLE_END in annotations else None,
        channels=compute_domains.held(claim) if compute_domains.DRIVER in drivers else (),
        nics=() if drivers.isdisjoint(nic_requests.DRIVERS) else nic_requests.given(claim),
        where=None if allocation is None or ours or is_handed_over else _where(allocation),
    )


def _where(allocation: Allocation) -> Where:
    """Return the conditions on nodes that can use the devices of an allocation.

    They are empty if all nodes can, or if there are too many conditions to evaluate here. In the second case only the
    scheduler evaluates them.
    """
    selector = allocation.node_selector
    return () if selector is None or size_of(selector) > MOST_TERMS else _shared((terms_of(selector),))


@functools.lru_cache(maxsize=4096)
def _shared(where: Where) -> Where:
    return where


def read_claim(data: msgspec.Raw) -> ClaimRecord | None:
    """Return the record that the cluster cache keeps of a claim, or None.

    A claim is kept in two cases. Devices that the cluster cache counts are allocated to it, or a pod of this driver can
    wait for it.

    Raises:
        PartlyRead: Some fields cannot be read. The error has a record of all other fields.
        BadJson: The JSON is not a claim.
    """
    return codec.decode_part(data, Claim, _kept)


def _kept(claim: Claim) -> ClaimRecord | None:
    record = claim_record(claim)
    # A claim that Kubernetes made for a pod is used by that pod alone. Once the pod has it, it matters to no other pod.
    can_matter = record.where is not None and not (record.owners and record.users)
    return record if record.counts or can_matter or claim.metadata.name.startswith(names.CLAIM_PREFIX) else None


def read_node(data: msgspec.Raw) -> Node:
    """Return a node without its annotations, except the annotation with its maintenance time.

    Equal label texts are stored once.

    Raises:
        BadJson: The JSON is not a node.
    """
    node: Node = codec.decode(data, Node)
    labels = {sys.intern(key): sys.intern(value) for key, value in node.metadata.labels.items()}
    own = {key: text for key, text in node.metadata.annotations.items() if key == names.MAINTENANCE}
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations=own, labels=labels)
    )


class ChannelSlice(msgspec.Struct, frozen=True):
    """A ResourceSlice that offers a node's channel of multi-node NVLink.

    A job needs the channel of each of its nodes to use NVLink between nodes.

    Attributes:
        metadata: Metadata without labels and annotations.
        node: The node.
    """

    metadata: Metadata
    node: str


def read_channels(data: msgspec.Raw) -> ChannelSlice | None:
    """Return the record of a ResourceSlice with a node's channel of multi-node NVLink.

    None for any other slice.

    Raises:
        BadJson: The JSON is not a slice.
    """
    piece: ResourceSlice = codec.decode(data, ResourceSlice)
    node = compute_domains.node_of(piece)
    return None if node is None else ChannelSlice(piece.metadata.bare, node)


class DeviceClass(msgspec.Struct, frozen=True):
    """The fields that the cluster cache keeps of a DeviceClass.

    Attributes:
        metadata: Metadata without labels and annotations.
        resources: The extended resources that the class serves. No node lists them as allocatable (KEP-5004).
        selectors: The CEL expressions that a device of the class must fulfil.
    """

    metadata: Metadata
    resources: frozenset[str]
    selectors: tuple[str, ...] = ()


class _Cel(msgspec.Struct, frozen=True):
    expression: str = ""


class _Selector(msgspec.Struct, frozen=True):
    cel: _Cel = _Cel()


class _ClassSpec(msgspec.Struct, rename="camel", frozen=True):
    extended_resource_name: str = ""
    selectors: list[_Selector] = []


class _RawClass(msgspec.Struct):
    metadata: Metadata
    spec: _ClassSpec = _ClassSpec()


def read_class(data: msgspec.Raw) -> DeviceClass:
    """Return the fields that the cluster cache keeps of a DeviceClass.

    Raises:
        BadJson: The JSON is not a device class.
    """
    raw: _RawClass = codec.decode(data, _RawClass)
    resources = {f"deviceclass.resource.kubernetes.io/{raw.metadata.name}", raw.spec.extended_resource_name}
    selectors = tuple(one.cel.expression for one in raw.spec.selectors)
    return DeviceClass(raw.metadata.bare, frozenset(resources - {""}), selectors)


class _RawTemplate(msgspec.Struct):
    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"")


def read_template(data: msgspec.Raw) -> Template:
    """Return a ResourceClaimTemplate with its spec, for a pod that names it. A spec that is too long is left empty.

    Raises:
        BadJson: The JSON is not a template.
    """
    raw: _RawTemplate = codec.decode(data, _RawTemplate)
    short = len(memoryview(raw.spec)) <= claim_templates.LONGEST
    return msgspec.structs.replace(_known(raw), spec=bytes(raw.spec) if short else b"")


def known_template(data: msgspec.Raw) -> Template:
    """Return the record of a ResourceClaimTemplate without its spec, which few pods need.

    Raises:
        BadJson: The JSON is not a template.
    """
    return _known(codec.decode(data, _RawTemplate))


def _known(raw: _RawTemplate) -> Template:
    if claim_alternatives.TEMPLATE_NAME.fullmatch(raw.metadata.name) is None:  # a copy's author wants to keep it
        return Template(raw.metadata.bare, None, domain=compute_domains.domain_of(raw.spec))
    static = raw.metadata.labels.get(names.LABEL) == names.LABEL_STATIC
    short = 0 < len(memoryview(raw.spec)) <= claim_templates.LONGEST
    digest = same_spec.digest(codec.decode(raw.spec, object)) if short else ""
    return Template(raw.metadata.bare, None, static, digest)
