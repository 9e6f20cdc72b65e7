"""What the controller keeps of objects: a claim, a node and a slice, without what no decision is made from.

Annotations and labels of other people's objects can be 256 KiB each; nothing of them is kept.
"""

from __future__ import annotations

import functools
import sys
from typing import Final

import msgspec

from dradriver.api import names, pins
from dradriver.api.ledger import OURS, Ledger
from dradriver.api.objects import Device, Metadata, Node, ResourceSlice
from dradriver.api.pins import Claim, Key, Pin, Taken
from dradriver.kube import codec
from dradriver.topology import codec as machines
from dradriver.topology.check import is_identity
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A claim.

    Attributes:
        metadata: Without labels and annotations.
        ours: Whether the controller wrote it: it has our label and choice, which an admission policy keeps others from.
        owner: Name and uid of the pod that controls it.
        pin: What it is pinned to; None where it is not ours, or damaged.
        devices: What the scheduler gave it of this driver; None while it is not allocated.
        users: Uids of those it is reserved for.
    """

    metadata: Metadata
    ours: bool
    owner: tuple[str, str] | None
    pin: Pin | None
    devices: dict[pins.Device, Taken] | None
    users: tuple[str, ...]

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def uid(self) -> str:
        """The object's identity; another claim may take its name."""
        return self.metadata.uid

    @property
    def deleting(self) -> bool:
        """Whether it is on its way out."""
        return self.metadata.deletion_timestamp is not None

    def owned_by(self, uid: str) -> bool:
        """Return whether the pod of this uid controls it."""
        return self.owner is not None and self.owner[1] == uid


def claim_record(claim: Claim, ledger: Ledger = OURS) -> ClaimRecord:
    """Return what is kept of a claim."""
    ours = claim.metadata.labels.get(names.LABEL) == names.LABEL_PLACED and names.CHOICE in claim.metadata.annotations
    return ClaimRecord(
        metadata=_bare(claim.metadata),
        ours=ours,
        owner=pins.owner(claim),
        pin=pins.pin(claim, ledger) if ours else None,
        devices=None if claim.status.allocation is None else pins.allocated(claim, ledger),
        users=tuple(consumer.uid for consumer in claim.status.reserved_for),
    )


def read_claim(data: msgspec.Raw, ledger: Ledger = OURS) -> ClaimRecord | None:
    """Return what is kept of a claim; None where it holds nothing of ours and no pod of ours can be waiting for it.

    Raises:
        BadJson: It is no claim.
    """
    claim: Claim = codec.decode(data, Claim)
    record = claim_record(claim, ledger)
    return record if record.ours or record.devices or claim.metadata.name.startswith(names.CLAIM_PREFIX) else None


def read_node(data: msgspec.Raw) -> Node:
    """Return a node without its annotations; what labels have in common is kept once.

    Raises:
        BadJson: It is no node.
    """
    node: Node = codec.decode(data, Node)
    labels = {sys.intern(key): sys.intern(value) for key, value in node.metadata.labels.items()}
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations={}, labels=labels))


class PartsOf(msgspec.Struct, frozen=True, kw_only=True):
    """How a device may be had in parts.

    Attributes:
        shared: In shares.
        sliced: In MIG slices, made where they are wanted.
        only: Never whole.
        exclusive: Its parts are of one namespace at a time.
    """

    shared: bool
    sliced: bool
    only: bool
    exclusive: bool


class SliceRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A slice of this driver, or of the one whose devices are handed out.

    Attributes:
        metadata: Without labels and annotations.
        pool: Its pool.
        node: Its node.
        generation: The pool's generation that it belongs to.
        count: How many slices that generation has.
        usable: Names of its devices that no taint blocks: our claims tolerate none.
        parts: How those of its devices may be had in parts that may, by name.
        placed: Names of its devices that are a placement of a MIG profile.
        machine: The machine in its annotation, or why that cannot be read; None without one.
        gpus: Of another driver's slice, which GPU each device is or is a part of: the uuid or, of a device without its
            GPU's, ``pci/`` and the bus id; by the device's name.
    """

    metadata: Metadata
    pool: str
    node: str
    generation: int
    count: int
    usable: frozenset[str]
    parts: dict[str, PartsOf]
    placed: frozenset[str]
    machine: Machine | str | None
    gpus: dict[str, str] | None = None


def read_slice(data: msgspec.Raw, ledger: Ledger = OURS) -> SliceRecord | None:
    """Return what is kept of a slice; None for a driver's that neither describes machines nor has the devices.

    Raises:
        BadJson: It is no slice.
    """
    piece: ResourceSlice = codec.decode(data, ResourceSlice)
    if piece.spec.driver != OURS.driver:
        return _theirs(piece, ledger) if piece.spec.driver == ledger.driver else None
    text = piece.metadata.annotations.get(names.MACHINE)
    machine = None if text is None else _machine(text, [_uuid(device) for device in piece.spec.devices])
    return SliceRecord(
        metadata=_bare(piece.metadata),
        pool=piece.spec.pool.name,
        node=piece.spec.node_name,
        generation=piece.spec.pool.generation,
        count=piece.spec.pool.resource_slice_count,
        usable=frozenset(d.name for d in piece.spec.devices if not any(taint.blocks for taint in d.taints)),
        parts={d.name: parts for d in piece.spec.devices if (parts := _parts(d)) is not None},
        placed=frozenset(d.name for d in piece.spec.devices if d.consumes_counters and _text(d, "type") == "mig"),
        machine=machine,
    )


def _theirs(piece: ResourceSlice, ledger: Ledger) -> SliceRecord:
    """Return what is kept of a slice of another driver's: which GPU each device is, and which are to be had whole.

    A GPU that several claims may share is not: a claim that says no amount gets one share of it.
    """
    gpus: dict[str, str] = {}
    usable = set()
    for device in piece.spec.devices:
        kind, uuid, parent = (_text(device, each) for each in ("type", ledger.uuid_attribute, "parentUUID"))
        if kind == "gpu" and uuid:
            gpus[device.name] = uuid
            if not device.allow_multiple_allocations and not any(taint.blocks for taint in device.taints):
                usable.add(device.name)
        elif parent:
            gpus[device.name] = parent
        elif address := _text(device, "resource.kubernetes.io/pciBusID"):
            gpus[device.name] = f"pci/{address}"  # passed through to a virtual machine: its uuid is made up
    return SliceRecord(
        metadata=_bare(piece.metadata),
        pool=piece.spec.pool.name,
        node=piece.spec.node_name,
        generation=piece.spec.pool.generation,
        count=piece.spec.pool.resource_slice_count,
        usable=frozenset(usable),
        parts={},
        placed=frozenset(),
        machine=None,
        gpus=gpus,
    )


class DeviceClass(msgspec.Struct, frozen=True):
    """A device class.

    Attributes:
        metadata: Without labels and annotations.
        resources: The extended resources that claims of it serve: they are in no node's allocatable (KEP-5004).
    """

    metadata: Metadata
    resources: frozenset[str]


class _ClassSpec(msgspec.Struct, rename="camel", frozen=True):
    extended_resource_name: str = ""


class _RawClass(msgspec.Struct):
    metadata: Metadata
    spec: _ClassSpec = _ClassSpec()


def read_class(data: msgspec.Raw) -> DeviceClass:
    """Return what is kept of a device class.

    Raises:
        BadJson: It is no device class.
    """
    found: _RawClass = codec.decode(data, _RawClass)
    resources = {f"deviceclass.resource.kubernetes.io/{found.metadata.name}", found.spec.extended_resource_name}
    return DeviceClass(_bare(found.metadata), frozenset(resources - {""}))


_STAND_IN: Final = "GPU-stand-in-"


def _uuid(device: Device) -> str:
    return _text(device, OURS.uuid_attribute) or _text(device, "parentUUID")


def _text(device: Device, attribute: str) -> str:
    text = device.attributes.get(attribute, {}).get("string", "")
    return text if isinstance(text, str) else ""


def _parts(device: Device) -> PartsOf | None:
    """Return how a device may be had in parts; None for one that one claim has for itself."""
    if not device.allow_multiple_allocations:
        return None
    return _parts_of(
        device.attributes.get("shareable", {}).get("bool") is True,
        _text(device, "mig") == "dynamic",
        _text(device, "type") == "mig",
        _text(device, "exclusiveTo") == "namespace",
    )


@functools.lru_cache(maxsize=16)
def _parts_of(shared: bool, sliced: bool, only: bool, exclusive: bool) -> PartsOf | None:
    if not (shared or sliced):
        return None
    return PartsOf(shared=shared, sliced=sliced, only=only, exclusive=exclusive)


def _machine(text: str, uuids: list[str]) -> Machine | str:
    """Return the machine that a text describes, or why it cannot be read.

    5,000 nodes have a few kinds of machine, which differ in their GPUs' identities. So the text is read with these
    taken out, once a kind, and all else is shared: a tenth of the time and of the memory.
    """
    if _STAND_IN in text:
        return _decoded(text)
    own: dict[str, str] = {}
    for uuid in uuids:
        stand_in = f"{_STAND_IN}{len(own)}"
        if is_identity(uuid) and (without := text.replace(f'"{uuid}"', f'"{stand_in}"')) != text:
            text, own[stand_in] = without, uuid
    kind = _decoded(text)
    if isinstance(kind, str):
        for stand_in, uuid in own.items():
            kind = kind.replace(stand_in, uuid)
        return kind
    if len({uuid.lower() for uuid in own.values()}) < len(own):
        return "two of its GPUs have one uuid"
    gpus = (msgspec.structs.replace(gpu, uuid=own.get(gpu.uuid, gpu.uuid)) for gpu in kind.gpus)
    return msgspec.structs.replace(kind, gpus=tuple(gpus))


@functools.lru_cache(maxsize=256)
def _decoded(text: str) -> Machine | str:
    try:
        return machines.decode(text)
    except TopologyError as error:
        return str(error)


def _bare(metadata: Metadata) -> Metadata:
    return msgspec.structs.replace(metadata, labels={}, annotations={}, owner_references=[])
