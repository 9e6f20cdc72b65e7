"""Builds a node's ResourceSlices from its machine, and reads the machine from ResourceSlices.

All slices of a node are a *pool*. The slices that belong together have one *generation*, a number that grows when the
pool changes. The node agent builds slices; the controller and ``gputopo`` read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import device_attributes, mig_devices
from dradriver.api.slices.slice_features import ALL, SliceFeatures
from dradriver.topology import machine_codec
from dradriver.topology.errors import TopologyError
from dradriver.topology.groups import Groups, group, unlinked
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.vendors import VENDORS

S = TypeVar("S")

MOST_DEVICES: Final = 64  # in a slice where one has taints or counters, resource/v1 types.go of 1.35
MOST_GPUS: Final = 128  # of a machine: what their links take in the annotation
EQUAL_SHARES: Final = 4  # of a GPU that is shared, where the server keeps no devices that claims share; by default
_WHOLE: Final = Mode()
_STATIC: Final = Mode(mig="static")


def build(
    machine: Machine,
    *,
    node: str,
    node_uid: str,
    taints: Mapping[str, Sequence[dict[str, Any]]] = MappingProxyType({}),
    modes: Mapping[str, Mode] = MappingProxyType({}),
    kept: Mapping[str, Collection[str]] = MappingProxyType({}),
    gone: Mapping[str, Any] = MappingProxyType({}),
    features: SliceFeatures = ALL,
) -> list[dict[str, Any]]:
    """Return the node's ResourceSlices of generation 0; the publisher sets generations and versions.

    The scheduler tries pools, slices and devices in the order of names and lists. So devices are ordered such that GPUs
    of good sets are neighbours. A device is named by its GPU's identity. If it were named by the GPU's index, a new GPU
    in the same slot would have the name of the old one, and a claim for the old GPU would get the new one.

    All GPUs of a group of well-linked GPUs must be free to allocate together. So a GPU with a taint that keeps pods
    away is in no group.

    Args:
        machine: The machine.
        node: The node's name.
        node_uid: The node's uid.
        taints: Taints of devices, by the GPU's uuid.
        modes: How each GPU is handed out, by its uuid. Without an entry it is handed out whole, or in MIG mode as its
            existing instances.
        kept: Names of the devices that claims use, by the GPU's uuid. An existing MIG instance that a claim uses stays
            a device until the claim is gone.
        gone: The taint of a device that is kept although its MIG instance is gone.
        features: The fields that the API server keeps. If it drops taints, tainted GPUs are not published.

    Raises:
        TopologyError: The machine has more GPUs than a node can have, or breaks a rule of ``topology.check``.
    """
    if len(machine.gpus) > MOST_GPUS:
        raise TopologyError(
            f"machine {machine.name!r}: {len(machine.gpus)} GPUs, and a node can have at most {MOST_GPUS}."
        )

    # The machine itself is an annotation. It must not change with every pod, or all slices would be written again.
    annotations = {names.MACHINE: machine_codec.encode(_without_dynamic_instances(machine, modes, features))}
    if features.lacking:
        annotations[names.SERVER_LACKS] = ",".join(features.lacking)
    tainted_positions = [
        i for i, gpu in enumerate(machine.gpus) if any(map(_keeps_pods_away, taints.get(gpu.uuid, ())))
    ]
    # Sets of well-linked GPUs, and an order in which such sets are neighbours, as indices of ``machine.gpus``.
    groups = group(unlinked(machine, tainted_positions))

    # If the API server drops taints, the scheduler would give out tainted GPUs: do not publish them.
    left_out = () if features.taints else tainted_positions
    by_gpu: list[list[device_attributes.Device]] = []
    counter_sets: list[dict[str, Any]] = []
    for position in groups.order:
        gpu = machine.gpus[position]
        if position in left_out:
            continue
        mode = _mode_of(gpu, modes)
        # A claim may still have a MIG instance that is gone: it stays a device, with the taint ``gone``. None if no
        # instance is gone.
        gpu_devices = _with_lost_instances(machine, position, mode, features, kept.get(gpu.uuid, ()), gone)
        if gpu_devices is None:
            gpu_devices = _devices_of_gpu(machine, groups, position, mode, features)
        if features.taints and (gpu_taints := taints.get(gpu.uuid)):
            gpu_devices = [device | {"taints": [*gpu_taints, *device.get("taints", ())]} for device in gpu_devices]
        by_gpu.append(gpu_devices)
        # Placements of MIG slices overlap: counters of the GPU's memory and compute slices keep them apart (KEP-4815).
        if any("consumesCounters" in device for device in gpu_devices):
            counter_sets.append({"name": device_name(gpu.uuid), "counters": mig_devices.counters(gpu)})

    # A slice holds either counters or devices, and a limited number of them; a GPU's devices stay together.
    content = [
        {"sharedCounters": entries}
        for entries in _packed([[counters] for counters in counter_sets], mig_devices.MOST_SETS)
    ]
    content += [{"devices": entries} for entries in _packed(by_gpu, MOST_DEVICES)] or [{"devices": []}]
    return _slice_objects(content, annotations, node=node, node_uid=node_uid)


def machine_alone(machine: Machine, *, node: str, node_uid: str) -> list[dict[str, Any]]:
    """Return a list with one ResourceSlice, which describes the machine in an annotation and has no devices.

    The node agent publishes it on nodes whose GPUs another driver allocates.

    Raises:
        TopologyError: The machine has more GPUs than a node can have, or breaks a rule of ``topology.check``.
    """
    if len(machine.gpus) > MOST_GPUS:
        raise TopologyError(
            f"machine {machine.name!r}: {len(machine.gpus)} GPUs, and a node can have at most {MOST_GPUS}."
        )
    gpus = tuple(msgspec.structs.replace(gpu, mig=None) for gpu in machine.gpus)  # the other driver tells of those
    annotations = {names.MACHINE: machine_codec.encode(msgspec.structs.replace(machine, gpus=gpus))}
    return _slice_objects([{"devices": []}], annotations, node=node, node_uid=node_uid)


def is_machine_alone(piece: ResourceSlice) -> bool:
    """Return whether a slice is the only one of its pool, and has a machine but no device.

    ``machine_alone`` builds such slices. ``build`` makes such a slice only if it must leave out all GPUs: all have
    taints, and the API server drops taints. In a pool of several slices the first one can also have no device, only the
    counters that the devices of the other slices consume.
    """
    alone = not piece.spec.devices and piece.spec.pool.resource_slice_count == 1
    return alone and names.MACHINE in piece.metadata.annotations


def _slice_objects(
    content: Sequence[dict[str, Any]], annotations: Mapping[str, str], *, node: str, node_uid: str
) -> list[dict[str, Any]]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    pool = {"name": node, "generation": 0, "resourceSliceCount": len(content)}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": slice_name(index, node),
                "annotations": annotations if index == 0 else {},
                "ownerReferences": [owner],
            },
            "spec": {"driver": names.DRIVER, "nodeName": node, "pool": pool} | piece,
        }
        for index, piece in enumerate(content)
    ]


def attributes(machine: Machine) -> dict[str, dict[str, Any]]:
    """Return the attributes that slices publish for a machine's whole GPUs, by device name."""
    groups = group(machine)
    by_name = {}
    for i, gpu in enumerate(machine.gpus):
        whole = device_attributes.neutral(device_attributes.whole(machine, groups, i, name=device_name(gpu.uuid)))
        by_name[whole["name"]] = whole["attributes"] if gpu.mig is None else device_attributes.identity(machine, i)
    return by_name


def of_part(gpu: Mapping[str, Any], told: Mapping[str, str | int]) -> dict[str, Any]:
    """Return the attributes that slices publish for a share or MIG slice.

    Args:
        gpu: The attributes of the whole GPU, of which those about links are left out.
        told: Attributes of the fraction that replace the GPU's attributes: ``type``, ``profile``, and ``uuid`` if the
            fraction has one.
    """
    own = {key: value for key, value in gpu.items() if not key.startswith(names.OF_LINKS)}
    if "uuid" in own:
        own["parentUUID"] = own["uuid"]
    return own | {key: {"int" if isinstance(value, int) else "string": value} for key, value in told.items()}


def slice_name(index: int, node: str) -> str:
    """Return the name of a node's slice, which begins with the index in hexadecimal.

    The scheduler reads slices in the order of their names.
    """
    name = f"{index:05x}-{names.DRIVER}-{node}"
    if len(name) <= 253:
        return name
    return f"{name[:236]}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"


def device_name(uuid: str) -> str:
    """Return the name of a GPU's device in slices: its uuid in lower case.

    This is a valid DNS label.
    """
    return uuid.lower()


def part_name(uuid: str, profile: int, start: int) -> str:
    """Return the device name of a MIG placement on the GPU with this uuid.

    ``profile`` is the numeric id of the MIG profile, ``start`` its first memory slice.
    """
    return mig_devices.placement_name(device_name(uuid), profile, start)


class Generation(NamedTuple, Generic[S]):
    """The slices of one generation of a pool.

    Attributes:
        number: The generation.
        slices: The slices that exist.
        said: The number of slices that the generation must have, as each of its slices says.
    """

    number: int
    slices: list[S]
    said: int

    @property
    def complete(self) -> bool:
        """Return whether all slices of the generation exist.

        The scheduler allocates devices only from a complete generation.
        """
        return len(self.slices) == self.said


def generations(pool: Iterable[S], place: Callable[[S], tuple[int, int]]) -> list[Generation[S]]:
    """Return a pool's slices by generation, the newest first.

    Consumers use only the newest generation (KEP-4381).

    Args:
        pool: All slices of one pool.
        place: A function that returns a slice's generation, and the number of slices of that generation.
    """
    by_number: dict[int, list[S]] = {}
    for piece in pool:
        by_number.setdefault(place(piece)[0], []).append(piece)
    return [
        Generation(number, by_number[number], max(place(piece)[1] for piece in by_number[number]))
        for number in sorted(by_number, reverse=True)
    ]


def place_of(piece: ResourceSlice) -> tuple[int, int]:
    """Return a slice's generation, and the number of slices of that generation."""
    return piece.spec.pool.generation, piece.spec.pool.resource_slice_count


def read_machine(slices: Iterable[ResourceSlice]) -> Machine | None:
    """Return the machine in the annotation of a node's slices; None without the annotation.

    Only the newest generation of slices is read, even if some of its slices are missing: the annotation is written
    together with the devices of its slice. The machine also has GPUs without a device of their own, such as GPUs in MIG
    mode.

    Raises:
        TopologyError: The annotation is not valid.
    """
    for newest in generations(slices, place_of)[:1]:
        texts = (piece.metadata.annotations.get(names.MACHINE) for piece in newest.slices)
        return next((machine_codec.decode(text) for text in texts if text is not None), None)
    return None


def as_handed_out(gpu: Gpu, mode: Mode, features: SliceFeatures) -> Mode:
    """Return a GPU's mode (whole, shares or MIG slices) that its slices can really publish.

    The mode of the policies is reduced to what the API server and the GPU support. If the GPU can never be published as
    a whole, ``fractions_only`` makes no difference, and is false in the result.

    Args:
        gpu: The GPU.
        mode: The mode that the policies request.
        features: The fields that the API server keeps.
    """
    if not VENDORS[gpu.vendor].parts:
        return _WHOLE
    able = {"dynamic": features.shares, "placements": features.counters}.get(mode.mig, False)
    if able and gpu.profiles:
        return mode if mig_devices.can_be_whole(gpu) else msgspec.structs.replace(mode, fractions_only=False)
    if gpu.mig is not None:
        return Mode(mig="off") if mode.mig == "off" else Mode(mig="static", exclusive_to=mode.exclusive_to)
    return mode if mode.mig == "off" and gpu.memory_mib else Mode()


def _devices_of_gpu(
    machine: Machine, groups: Groups, position: int, mode: Mode, features: SliceFeatures
) -> list[device_attributes.Device]:
    """Return the devices that are published for a GPU.

    A GPU that cannot be divided as its mode says is published as a whole. A GPU in MIG mode is never published as a
    whole. If no instances are created for claims, its existing instances are published, or nothing with ``mig: off``.

    ``position`` is the GPU's position in ``machine.gpus``, ``features`` what the API server keeps of slices.
    """
    gpu = machine.gpus[position]
    name = device_name(gpu.uuid)
    mode = as_handed_out(gpu, mode, features)

    # MIG: one device of which instances are made on demand, a device for each placement, or the existing instances.
    if mode.mig == "dynamic":
        return [mig_devices.on_demand(machine, groups, position, mode, name=name)]
    if mode.mig == "placements":
        return mig_devices.placements(machine, groups, position, mode, name=name)
    if gpu.mig is not None:
        return [] if mode.mig == "off" else mig_devices.static(machine, position, mode, name=name)

    # Whole, shared, or, if the API server has no shared devices, divided into equal shares.
    if mode.shared == "none":
        return [device_attributes.neutral(device_attributes.whole(machine, groups, position, name=name))]
    if features.shares:
        return [device_attributes.shared(machine, groups, position, mode, name=name)]
    return device_attributes.equal_shares(machine, position, mode, shares=mode.equal_shares or EQUAL_SHARES, name=name)


def _with_lost_instances(
    machine: Machine,
    position: int,
    mode: Mode,
    features: SliceFeatures,
    kept: Collection[str],
    taint: Mapping[str, Any],
) -> list[device_attributes.Device] | None:
    """Return the devices of a GPU if a claim uses a MIG instance that is gone; else None.

    The GPU is not published as a whole, even if MIG mode is off by now. The lost instance is published as a tainted
    device. If the API server drops taints (``features``), it is not published. ``kept`` are the names of devices that
    claims use, ``position`` is the GPU's position in the machine.
    """
    gpu = machine.gpus[position]
    handed_out = as_handed_out(gpu, mode, features)
    if not kept or "static" not in (mode.mig, handed_out.mig):
        return None
    name = device_name(gpu.uuid)
    lost = mig_devices.gone(machine, position, mode, kept, taint, name=name)
    if not lost:
        return None
    return [*mig_devices.static(machine, position, mode, name=name), *(lost if features.taints else ())]


def _mode_of(gpu: Gpu, modes: Mapping[str, Mode]) -> Mode:
    return modes.get(gpu.uuid) or (_WHOLE if gpu.mig is None else _STATIC)


def _without_dynamic_instances(machine: Machine, modes: Mapping[str, Mode], features: SliceFeatures) -> Machine:
    """Return the machine without MIG instances that were created for claims.

    With these instances the published machine would change with every pod. On GPUs whose MIG mode also changes with the
    pods, the mode is left out, too.
    """
    gpus = tuple(
        msgspec.structs.replace(gpu, mig=None if mig_devices.can_be_whole(gpu) or gpu.mig is None else ())
        if as_handed_out(gpu, _mode_of(gpu, modes), features).mig in ("dynamic", "placements")
        else gpu
        for gpu in machine.gpus
    )
    return machine if gpus == machine.gpus else msgspec.structs.replace(machine, gpus=gpus)


def _packed(groups: Iterable[list[dict[str, Any]]], most: int) -> list[list[dict[str, Any]]]:
    """Distribute groups of devices or counter sets to slices, without splitting a group.

    A slice has at most ``most`` of them. A group with more is a slice of its own.
    """
    runs: list[list[dict[str, Any]]] = []
    for some in groups:
        if not runs or len(runs[-1]) + len(some) > most:
            runs.append([])
        runs[-1] += some
    return runs


def _keeps_pods_away(taint: Mapping[str, Any]) -> bool:
    return taint.get("effect") != "None"
