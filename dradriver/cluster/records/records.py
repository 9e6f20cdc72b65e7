"""What the controller keeps of objects: claims, nodes, classes and templates, without what no decision is made from.

Annotations and labels of other people's objects can be 256 KiB each; nothing of them is kept.
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
    """A claim.

    Attributes:
        metadata: Without labels and annotations.
        handed_over: A digest of what the controller wrote it from, without a pin, for the scheduler to fill; empty of
            any other claim.
        ours: Whether the controller wrote it: it has our label and choice, which an admission policy keeps others from.
        owners: Name and uid of the pod that controls it, or of all that share it.
        pin: What it is pinned to; None where it is not ours, or damaged.
        devices: What the scheduler gave it of this driver; None while it is not allocated.
        preempts: Which pods have to end for it; None for none.
        allocated_at: When, as the API writes times; empty where that is not said.
        users: Uids of those it is reserved for.
        set: What it was chosen for, if pods share it that ask for the same; None where it is one pod's.
        planned: What it says of the plan of its pod's gang; None where it was made for a pod alone.
        seat: The gang barrier device (seat) that it was allocated; None for none.
        idle: That all it was given does nothing, as its node's agent says; None where it does not say so.
        idle_end: When its pods are to be ended for that, in seconds since the epoch; None where they are not.
        channels: The nodes whose channel of multi-node NVLink it was given.
        nics: The NICs of other drivers that the scheduler gave it.
        where: What nodes must have to use what it was given, if others wrote it and it is allocated; else None.
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
        """Return the record's namespace and name of the claim."""
        return self.metadata.namespace, self.metadata.name

    @property
    def uid(self) -> str:
        """Return the record's uid of the claim; another claim may take its name."""
        return self.metadata.uid

    @property
    def deleting(self) -> bool:
        """Return whether the claim is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def counts(self) -> bool:
        """Return whether the claim is ours, or was given GPUs, NICs or NVLink channels."""
        return bool(self.ours or self.devices or self.channels or self.nics)

    @property
    def has_nics(self) -> bool:
        """Return whether the claim was given NICs, or is pinned to some."""
        return bool(self.nics or (self.pin is not None and self.pin.nics))

    def owned_by(self, uid: str) -> bool:
        """Return whether the pod of this uid controls the recorded claim, or is one of those that share it."""
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
    """Return what nodes must have to use what a claim was given; empty if all nodes can use it."""
    selector = allocation.node_selector
    return () if selector is None or size_of(selector) > MOST_TERMS else _shared((terms_of(selector),))


@functools.lru_cache(maxsize=4096)
def _shared(where: Where) -> Where:
    return where


def read_claim(data: msgspec.Raw) -> ClaimRecord | None:
    """Return the record of a claim; None if it holds nothing that counts and no pod of ours can wait for it.

    Raises:
        PartlyRead: Not all of it can be read: what it was given may be known all the same.
        BadJson: It is no claim.
    """
    return codec.decode_part(data, Claim, _kept)


def _kept(claim: Claim) -> ClaimRecord | None:
    record = claim_record(claim)
    # A claim that Kubernetes made for a pod is used by that pod alone. Once the pod has it, it matters to no other pod.
    can_matter = record.where is not None and not (record.owners and record.users)
    return record if record.counts or can_matter or claim.metadata.name.startswith(names.CLAIM_PREFIX) else None


def read_node(data: msgspec.Raw) -> Node:
    """Return a node with the annotation that says when it goes, and no other; what labels have in common is kept once.

    Raises:
        BadJson: It is no node.
    """
    node: Node = codec.decode(data, Node)
    labels = {sys.intern(key): sys.intern(value) for key, value in node.metadata.labels.items()}
    own = {key: text for key, text in node.metadata.annotations.items() if key == names.MAINTENANCE}
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations=own, labels=labels)
    )


class ChannelSlice(msgspec.Struct, frozen=True):
    """A slice that offers a node's channel of multi-node NVLink.

    Attributes:
        metadata: Without labels and annotations.
        node: The node.
    """

    metadata: Metadata
    node: str


def read_channels(data: msgspec.Raw) -> ChannelSlice | None:
    """Return the record of a slice with multi-node NVLink channels; None for one without a channel.

    Raises:
        BadJson: It is no slice.
    """
    piece: ResourceSlice = codec.decode(data, ResourceSlice)
    node = compute_domains.node_of(piece)
    return None if node is None else ChannelSlice(piece.metadata.bare, node)


class DeviceClass(msgspec.Struct, frozen=True):
    """A device class.

    Attributes:
        metadata: Without labels and annotations.
        resources: The extended resources that claims of it serve: they are in no node's allocatable (KEP-5004).
        selectors: What a device of it is, as CEL expressions.
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
    """Return the record that is kept of a device class.

    Raises:
        BadJson: It is no device class.
    """
    raw: _RawClass = codec.decode(data, _RawClass)
    resources = {f"deviceclass.resource.kubernetes.io/{raw.metadata.name}", raw.spec.extended_resource_name}
    selectors = tuple(one.cel.expression for one in raw.spec.selectors)
    return DeviceClass(raw.metadata.bare, frozenset(resources - {""}), selectors)


class _RawTemplate(msgspec.Struct):
    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"")


def read_template(data: msgspec.Raw) -> Template:
    """Return a ResourceClaimTemplate with its spec, for a pod that names it.

    Raises:
        BadJson: It is no template.
    """
    raw: _RawTemplate = codec.decode(data, _RawTemplate)
    short = len(memoryview(raw.spec)) <= claim_templates.LONGEST
    return msgspec.structs.replace(_known(raw), spec=bytes(raw.spec) if short else b"")


def known_template(data: msgspec.Raw) -> Template:
    """Return the record of a ResourceClaimTemplate: not its spec, which hardly any pod of ours needs.

    Raises:
        BadJson: It is no template.
    """
    return _known(codec.decode(data, _RawTemplate))


def _known(raw: _RawTemplate) -> Template:
    if claim_alternatives.TEMPLATE_NAME.fullmatch(raw.metadata.name) is None:  # a copy's author wants to keep it
        return Template(raw.metadata.bare, None, domain=compute_domains.domain_of(raw.spec))
    static = raw.metadata.labels.get(names.LABEL) == names.LABEL_STATIC
    short = 0 < len(memoryview(raw.spec)) <= claim_templates.LONGEST
    digest = same_spec.digest(codec.decode(raw.spec, object)) if short else ""
    return Template(raw.metadata.bare, None, static, digest)
