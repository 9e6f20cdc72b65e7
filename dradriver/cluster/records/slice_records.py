"""The records that the cluster cache keeps of ResourceSlices.

A record has the slice's position in its pool. For a slice with GPUs it also has the offered devices and the machine.

A *pool* is the slices of one node. A *share* is a fraction of a GPU without MIG.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any, Final

import msgspec

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.allocating_driver import OURS, Ledger, current_ledger
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.objects import Metadata
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import FIELDS
from dradriver.cluster.records import devices
from dradriver.cluster.records.devices import OwnSlice, PartsOf
from dradriver.kube import codec
from dradriver.topology import machine_codec
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_identity, is_mig_uuid
from dradriver.topology.machine import Gpu, Machine

MODE_CHANGES: Final = names.PREFIX + "mode-changes"
"""The taint of a GPU whose mode the node agent is about to change, which is no fault."""
_MOST_TEXT: Final = 96 << 10  # 16 GPUs with all that there is to say of each have half of it; takes 20 ms
_PLACEHOLDER: Final = "-stand-in-"
_UUID: Final = re.compile(r'(?<="uuid":")[^"\\]{1,63}(?=")|(?<=[0-9],")MIG-[0-9a-z/-]{1,59}(?=")')


class PoolSlice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A ResourceSlice of any driver, with its position in its pool.

    Attributes:
        metadata: Metadata without labels and annotations.
        driver: The driver that publishes it.
        pool: The name of its pool.
        node: The name of its node.
        generation: The generation of the pool that it belongs to. The driver raises this number with each change.
        count: The number of slices in that generation.
    """

    metadata: Metadata
    driver: str
    pool: str
    node: str
    generation: int
    count: int


def place_in_pool(piece: ResourceSlice) -> dict[str, Any]:
    """Return a slice's position in its pool, as the fields of ``PoolSlice``.

    Each subclass of ``PoolSlice`` is made with these fields and its own.
    """
    return {
        "metadata": piece.metadata.bare,
        "driver": sys.intern(piece.spec.driver),
        "pool": sys.intern(piece.spec.pool.name),
        "node": piece.spec.node_name,
        "generation": piece.spec.pool.generation,
        "count": piece.spec.pool.resource_slice_count,
    }


class SliceRecord(PoolSlice, frozen=True, kw_only=True, gc=False):
    """A ResourceSlice of GPUs: of this driver, or of another driver that allocates GPUs.

    Attributes:
        usable: Names of its devices that no taint blocks; our claims tolerate no taints. In the cluster cache, devices
            that a DeviceTaintRule taints are removed, too.
        parts: How its divisible devices can be allocated in fractions, by device name.
        placed: Its devices that are MIG slices, by device name.
        machine: The machine in its annotation, or the reason why the annotation cannot be read; None without the
            annotation.
        lacks: Features that the API server lacked when the slice was written, named as in
            ``api/slices/slice_features.py``.
        gpus: For another driver's slice, the GPU of each device (``devices.identity``), by device name; else None.
        ill: Names of its devices that are blocked by a taint for a fault.
        alone: Whether it describes a machine and has no devices. Then another driver allocates that machine's GPUs, if
            it has any.
        seats: Whether its node's agent can prepare claims with gang barrier devices.
    """

    usable: frozenset[str]
    parts: dict[str, PartsOf]
    placed: dict[str, OwnSlice]
    machine: Machine | str | None
    lacks: frozenset[str] = frozenset()
    gpus: dict[str, str] | None = None
    ill: frozenset[str] = frozenset()
    alone: bool = False
    seats: bool = False


def read_slice(data: msgspec.Raw) -> SliceRecord | None:
    """Return the fields that the cluster cache keeps of a ResourceSlice of GPUs.

    None if the slice has neither a machine nor devices of the driver that allocates GPUs.

    Raises:
        BadJson: The JSON is not a slice.
    """
    return slice_record(codec.decode(data, ResourceSlice))


def slice_record(piece: ResourceSlice) -> SliceRecord | None:
    """Return the fields that the cluster cache keeps of a decoded ResourceSlice of GPUs.

    None if the slice has neither a machine nor devices of the driver that allocates GPUs.
    """
    if piece.spec.driver != OURS.driver:
        ledger = current_ledger()
        return _theirs(piece, ledger) if piece.spec.driver == ledger.driver else None
    if names.is_seat(piece.spec.driver, piece.spec.pool.name):
        return None
    text = piece.metadata.annotations.get(names.MACHINE)
    return SliceRecord(
        **place_in_pool(piece),
        usable=frozenset(d.name for d in piece.spec.devices if not d.blocked),
        parts={d.name: parts for d in piece.spec.devices if (parts := devices.parts_of(d)) is not None},
        placed={d.name: own for d in piece.spec.devices if (own := devices.own_slice(d)) is not None},
        machine=None if text is None else _machine(text),
        lacks=frozenset(piece.metadata.annotations.get(names.SERVER_LACKS, "").split(",")) & FIELDS.keys(),
        ill=frozenset(d.name for d in piece.spec.devices if any(t.blocks and t.key != MODE_CHANGES for t in d.taints)),
        alone=resource_slices.is_machine_alone(piece),
        seats=bool(piece.spec.devices) and all(map(gang_barrier_device.known, piece.spec.devices)),
    )


def _theirs(piece: ResourceSlice, ledger: Ledger) -> SliceRecord:
    """Return the record of a slice of another allocating driver, which ``ledger`` describes.

    Its usable devices are the GPUs that can be allocated whole. A GPU that several claims can share is not usable,
    because a claim that requests no amount gets only one share of it.
    """
    every = [(device, devices.identity(device, ledger)) for device in piece.spec.devices]
    return SliceRecord(
        **place_in_pool(piece),
        usable=frozenset(
            device.name
            for device, _ in every
            if devices.is_gpu(device, ledger) and not (device.allow_multiple_allocations or device.blocked)
        ),
        parts={},
        placed={},
        machine=None,
        gpus={device.name: gpu for device, gpu in every if gpu},
        ill=frozenset(device.name for device, _ in every if device.blocked),
    )


def _machine(text: str) -> Machine | str:
    """Return the machine that a text describes, or the reason why it cannot be read.

    5,000 nodes have only a few kinds of machine. Machines of one kind differ only in the uuids of their GPUs and MIG
    instances. So the uuids are replaced by placeholders, and the text is decoded once per kind. Then the uuids are put
    into a copy that shares everything else. This takes a tenth of the time and of the memory.
    """
    if len(text) > _MOST_TEXT:
        return f"its description has {len(text)} characters, and at most {_MOST_TEXT} are read"
    if _PLACEHOLDER in text:  # placeholders could not be told from this text
        return _decoded(text)
    uuid_of_placeholder: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        uuid = match[0]
        if not is_identity(uuid) and not is_mig_uuid(uuid):
            return uuid
        name = f"{'MIG' if uuid.startswith('MIG-') else 'GPU'}{_PLACEHOLDER}{len(uuid_of_placeholder)}"
        uuid_of_placeholder[name] = uuid
        return name

    machine_of_kind = _decoded(_UUID.sub(placeholder, text))
    if isinstance(machine_of_kind, str):
        error = machine_of_kind
        # The error must name the uuids of this machine. The last placeholder is replaced first, because the name of
        # number 10 begins with that of number 1.
        for name, uuid in reversed(uuid_of_placeholder.items()):
            error = error.replace(name, uuid)
        return error
    gpus = tuple(_with_uuids(gpu, uuid_of_placeholder) for gpu in machine_of_kind.gpus)
    # The check of ``_decoded`` saw a different placeholder for each GPU, so it cannot have found this.
    if len({gpu.uuid.lower() for gpu in gpus}) < len(gpus):
        return "two of its GPUs have one uuid"
    return msgspec.structs.replace(machine_of_kind, gpus=gpus)


def _with_uuids(gpu: Gpu, uuid_of_placeholder: dict[str, str]) -> Gpu:
    def restored(uuid: str) -> str:
        return uuid_of_placeholder.get(uuid, uuid)

    mig = gpu.mig and tuple(msgspec.structs.replace(instance, uuid=restored(instance.uuid)) for instance in gpu.mig)
    return msgspec.structs.replace(gpu, uuid=restored(gpu.uuid), mig=mig)


@functools.lru_cache(maxsize=64)  # 50 MB, were all of them as long as they may be
def _decoded(text: str) -> Machine | str:
    """Return the machine that a text describes, or the reason why it cannot be read.

    Results are cached, because many nodes have the same text.
    """
    try:
        return machine_codec.decode(text)
    except TopologyError as error:
        return str(error)
