"""A node's pool: its newest complete ResourceSlices, with the machine that one of them describes.

A driver raises the *generation* with each change of a node's slices. The generation is complete once all its slices are
there. A *gang barrier device* in a pod's claim keeps the pod unbound until its whole gang can start.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import msgspec

from dradriver.allocator import Amount
from dradriver.allocator.parts.existing_instances import with_instances
from dradriver.api.claims.pins import Key, MigSlice, Usage
from dradriver.api.slices import resource_slices
from dradriver.cluster.records.devices import OwnSlice, PartsOf
from dradriver.cluster.records.slice_records import SliceRecord
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)


class Pool(msgspec.Struct):
    """The GPUs of one node, from the newest complete generation of its ResourceSlices.

    Attributes:
        devices: Device name and uuid of each GPU, by the GPU's number on the machine.
        usable: Names of the devices that can be allocated.
        parts: How each divisible device can be allocated in fractions, by device name.
        placed: The MIG slices that are devices of their own, by the GPU's device name and the slice's device name.
        counted: Whether some of these MIG slices are only possible placements. Counters of the GPU say how many of them
            can be allocated together. Other MIG slices are existing instances.
        machine: The machine.
        offered: The machine with the MIG profiles that can be allocated. If a GPU's MIG instances exist already, these
            instances are all that it offers.
        ill: Names of the devices that are not usable because they have a fault.
        seats: Whether the node's agent can prepare claims with gang barrier devices.
        exclusive: Names of the devices whose fractions are for one namespace at a time by the policies in force. What
            agents publish about this is in ``parts``.
        row: The node's row in the fleet; None while the fleet does not contain the node.
    """

    devices: dict[int, tuple[str, str]]
    usable: frozenset[str]
    parts: dict[str, PartsOf]
    placed: dict[str, dict[str, MigSlice]]
    counted: bool
    machine: Machine
    offered: Machine
    ill: frozenset[str] = frozenset()
    seats: bool = False
    exclusive: frozenset[str] = frozenset()
    row: int | None = None

    def is_exclusive(self, device: str) -> bool:
        """Return whether a device can have fractions of only one namespace at a time."""
        parts = self.parts.get(device)
        return parts is not None and (parts.exclusive or device in self.exclusive)

    def numbers(self, devices: Collection[str]) -> set[int]:
        """Return the GPU numbers of a pool's devices with these names."""
        return {number for number, (device, _) in self.devices.items() if device in devices}


def read(name: str, pieces: Collection[SliceRecord]) -> Pool | None:
    """Return the pool of a node's GPUs, from its ResourceSlices.

    Args:
        name: The pool's name, which must be the node's.
        pieces: The slices of the pool, of all generations.

    Returns:
        None if the slices are not complete, belong to another node, or have no readable machine.
    """
    current = newest(pieces)
    if any(piece.node != name for piece in current):
        logger.warning(
            "Pool %s: its slices do not belong to the node of that name. No pod is placed on its GPUs.", name
        )
        return None
    # One of the slices has the machine in an annotation. It is a text that says why if it cannot be read.
    machine = next((piece.machine for piece in current if piece.machine is not None), None)
    if isinstance(machine, str):
        error = machine.removesuffix(".")
        logger.warning("Pool %s: %s. No pod is placed on its GPUs.", name, error)
    if machine is None or isinstance(machine, str):
        return None
    devices = {gpu.index: (resource_slices.device_name(gpu.uuid), gpu.uuid) for gpu in machine.gpus}
    usable = frozenset().union(*(piece.usable for piece in current))
    divisions = {device: division for piece in current for device, division in piece.parts.items()}
    # MIG slices that are devices of their own. Their GPU is divided into them, and is usable if one of them is. The GPU
    # can be allocated as a whole, too, unless it is no usable device itself (``only``).
    mig_slices = {device: mig_slice for piece in current for device, mig_slice in piece.placed.items()}
    placed = _placed(machine, mig_slices)
    for device, slices_of_gpu in placed.items():
        exclusive = any(mig_slices[slice_device].exclusive for slice_device in slices_of_gpu)
        divisions[device] = PartsOf(shared=False, sliced=True, only=device not in usable, exclusive=exclusive)
        if not usable.isdisjoint(slices_of_gpu):
            usable |= {device}
    # A counted MIG slice is a possible placement on its GPU. Any other is an instance that exists already.
    counted = any(mig_slice.counted for mig_slice in mig_slices.values())
    offered = _offered(machine, placed, mig_slices)
    unhealthy = frozenset().union(*(piece.ill for piece in current))
    # A GPU is unhealthy if all its MIG slices are unusable and one of them is unhealthy.
    unhealthy |= {gpu for gpu in placed if gpu not in usable and not unhealthy.isdisjoint(placed[gpu])}
    has_seats = all(piece.seats for piece in current)
    return Pool(devices, usable, divisions, placed, counted, machine, offered, ill=unhealthy, seats=has_seats)


def newest(pieces: Collection[SliceRecord]) -> list[SliceRecord]:
    """Return the newest generation of a pool's ResourceSlices, ordered by name.

    The result is empty if that generation is not complete. ``pieces`` are the slices of all generations.
    """
    known = resource_slices.generations(pieces, lambda piece: (piece.generation, piece.count))
    return sorted(known[0].slices, key=lambda piece: piece.metadata.name) if known and known[0].complete else []


def believed(machine: Machine, device: str, held: Mapping[Key, Usage]) -> Mapping[Key, Usage]:
    """Return the usages of a GPU by claim; a doubtful MIG slice counts as the whole GPU.

    A usage of the whole GPU is None. The place of a MIG slice is read from the claim's status. Others can write this
    status, so the place may be wrong. A MIG slice is doubtful if it is not one that the GPU's profiles allow. It counts
    as the whole GPU, so no other claim is placed next to it.

    The scheduler does not use these places. It counts the sizes of MIG slices itself, and never allocates more than a
    GPU has.

    Args:
        machine: The node's machine.
        device: The name of the GPU's device.
        held: The usage of the GPU by each claim.
    """
    # ``compute`` is the number of compute slices that the scheduler counted. Only a MIG slice that was read from a
    # claim's status has it. It is 0 if the place comes from the claim's pin, or if the MIG slice is a device of its
    # own: others cannot write these places, so they are believed.
    claims_with_counted_slices = [
        claim
        for claim, usage in held.items()
        if usage and any(isinstance(fraction, MigSlice) and fraction.compute for fraction in usage)
    ]
    if not claims_with_counted_slices:
        return held
    profiles = {
        profile.name: profile
        for gpu in machine.gpus
        if resource_slices.device_name(gpu.uuid) == device
        for profile in gpu.profiles
    }

    def is_possible(fraction: Amount | MigSlice) -> bool:
        """Return whether a fraction is a MIG slice that the GPU's profiles allow.

        False for a share, because a GPU with MIG slices has no shares.
        """
        if not isinstance(fraction, MigSlice):
            return False
        profile = profiles.get(fraction.profile)
        return (
            profile is not None
            and fraction.start in profile.starts
            and (fraction.size, fraction.compute) == (profile.size, profile.compute)
        )

    doubtful = [claim for claim in claims_with_counted_slices if not all(map(is_possible, held[claim] or ()))]
    whole_gpu_for_doubtful: dict[Key, Usage] = dict.fromkeys(doubtful)
    return {**held, **whole_gpu_for_doubtful}


def _offered(machine: Machine, placed: Mapping[str, Mapping[str, MigSlice]], own: Mapping[str, OwnSlice]) -> Machine:
    """Return the machine with the MIG profiles that can be allocated.

    A GPU whose MIG instances exist already offers these instances only. ``placed`` has the MIG slices that are devices,
    by the GPU's device name and the slice's. ``own`` says, by the slice's device name, whether the instance exists
    already.
    """
    if all(mig_slice.counted for mig_slice in own.values()):
        return machine
    gpus = list(machine.gpus)
    for position, gpu in enumerate(gpus):
        every = placed.get(resource_slices.device_name(gpu.uuid), {})
        if every and not any(own[name].counted for name in every):
            gpus[position] = with_instances(gpu, [(mig_slice.profile, mig_slice.start) for mig_slice in every.values()])
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


def _placed(machine: Machine, listed: Collection[str]) -> dict[str, dict[str, MigSlice]]:
    """Return the MIG slices among a machine's devices, by the GPU's device name and the slice's device name.

    ``listed`` has the names of the devices.
    """
    placed: dict[str, dict[str, MigSlice]] = {}
    for gpu in machine.gpus if listed else ():
        device = resource_slices.device_name(gpu.uuid)
        every = ((profile, start) for profile in gpu.profiles for start in profile.starts)
        own = {
            name: MigSlice(profile.name, start, profile.size)
            for profile, start in every
            if (name := resource_slices.part_name(gpu.uuid, profile.id, start)) in listed
        }
        if own:
            placed[device] = own
    return placed
