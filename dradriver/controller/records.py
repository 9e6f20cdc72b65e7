"""What the controller keeps of objects: a claim, a node and a slice, without what no decision is made from.

Annotations and labels of other people's objects can be 256 KiB each; nothing of them is kept.
"""

from __future__ import annotations

import functools

import msgspec

from dradriver.api import names, pins
from dradriver.api.ledger import OURS
from dradriver.api.objects import Metadata, Node, ResourceSlice
from dradriver.api.pins import Amount, Claim, Device, Key, Pin
from dradriver.kube import codec
from dradriver.topology import codec as machines
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
    devices: dict[Device, Amount] | None
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


def claim_record(claim: Claim) -> ClaimRecord:
    """Return what is kept of a claim."""
    ours = claim.metadata.labels.get(names.LABEL) == names.LABEL_PLACED and names.CHOICE in claim.metadata.annotations
    return ClaimRecord(
        metadata=_bare(claim.metadata),
        ours=ours,
        owner=pins.owner(claim),
        pin=pins.pin(claim) if ours else None,
        devices=None if claim.status.allocation is None else pins.allocated(claim),
        users=tuple(consumer.uid for consumer in claim.status.reserved_for),
    )


def read_claim(data: msgspec.Raw) -> ClaimRecord | None:
    """Return what is kept of a claim; None where it holds nothing of ours and no pod of ours can be waiting for it.

    Raises:
        BadJson: It is no claim.
    """
    claim: Claim = codec.decode(data, Claim)
    record = claim_record(claim)
    return record if record.ours or record.devices or claim.metadata.name.startswith(names.CLAIM_PREFIX) else None


def read_node(data: msgspec.Raw) -> Node:
    """Return a node without its annotations.

    Raises:
        BadJson: It is no node.
    """
    node: Node = codec.decode(data, Node)
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations={}))


class SliceRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A slice of this driver.

    Attributes:
        metadata: Without labels and annotations.
        pool: Its pool.
        node: Its node.
        generation: The pool's generation that it belongs to.
        count: How many slices that generation has.
        usable: Names of its devices that no taint blocks: our claims tolerate none.
        machine: The machine in its annotation, or why that cannot be read; None without one.
    """

    metadata: Metadata
    pool: str
    node: str
    generation: int
    count: int
    usable: frozenset[str]
    machine: Machine | str | None


def read_slice(data: msgspec.Raw) -> SliceRecord | None:
    """Return what is kept of a slice; None for another driver's.

    Raises:
        BadJson: It is no slice.
    """
    piece: ResourceSlice = codec.decode(data, ResourceSlice)
    if piece.spec.driver != OURS.driver:
        return None
    text = piece.metadata.annotations.get(names.MACHINE)
    machine: Machine | str | None = None
    if text is not None:
        try:
            machine = _shared(machines.decode(text))
        except TopologyError as error:
            machine = str(error)
    return SliceRecord(
        metadata=_bare(piece.metadata),
        pool=piece.spec.pool.name,
        node=piece.spec.node_name,
        generation=piece.spec.pool.generation,
        count=piece.spec.pool.resource_slice_count,
        usable=frozenset(d.name for d in piece.spec.devices if not any(taint.blocks for taint in d.taints)),
        machine=machine,
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


@functools.lru_cache(maxsize=256)
def _bare_machine(machine: Machine) -> Machine:
    return machine


def _shared(machine: Machine) -> Machine:
    """Return an equal machine that shares with others all but its GPUs' identities: 5,000 nodes have a few kinds."""
    bare = _bare_machine(
        msgspec.structs.replace(machine, gpus=tuple(msgspec.structs.replace(gpu, uuid="") for gpu in machine.gpus))
    )
    gpus = (msgspec.structs.replace(own, uuid=gpu.uuid) for own, gpu in zip(bare.gpus, machine.gpus, strict=True))
    return msgspec.structs.replace(bare, gpus=tuple(gpus))


def _bare(metadata: Metadata) -> Metadata:
    return msgspec.structs.replace(metadata, labels={}, annotations={}, owner_references=[])
