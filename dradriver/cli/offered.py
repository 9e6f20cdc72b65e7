"""What of a machine's GPUs may be had in parts, where nothing but the machine is known."""

from __future__ import annotations

import msgspec

from dradriver.allocator import Offer
from dradriver.allocator.parts.existing import with_instances
from dradriver.api import mig_devices
from dradriver.topology.machine import Gpu, Machine


def offered(machine: Machine) -> tuple[Machine, Offer]:
    """The machine as MIG slices can be had of it, and which of its GPUs may be had in parts.

    The MIG instances that a GPU has are handed out as they are. Without any its instances are made where they are
    wanted; in MIG mode it is had in slices alone.
    """
    every = frozenset(gpu.index for gpu in machine.gpus)
    in_mig_mode = frozenset(gpu.index for gpu in machine.gpus if gpu.mig is not None)
    gpus = tuple(_as_it_is(gpu) if gpu.mig else gpu for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus), Offer(
        shared=every - in_mig_mode, sliced=every, parts_only=in_mig_mode
    )


def _as_it_is(gpu: Gpu) -> Gpu:
    there = mig_devices.existing(gpu.mig or (), gpu.profiles)
    return with_instances(gpu, [(profile.name, one.start or 0) for one, profile in there])
