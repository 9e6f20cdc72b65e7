"""Claims that want the same GPUs, of every kind: whole ones, MIG instances, shares by MPS and by time-slicing."""

from __future__ import annotations

from typing import Any, NamedTuple

from dradriver.api.base import names
from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.threads import Thread
from dradriver.node.vendors.nvidia.devices import nvidia_hardware
from dradriver.node.vendors.nvidia.devices.capabilities import SimulatedCapabilities
from dradriver.node.vendors.nvidia.devices.mps_and_time_slicing import Sharing
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from tests.fakes.node import claim, device, edits, parameters, result, uuid
from tests.fakes.parts import PROFILES


class Part(NamedTuple):
    """A part of a GPU.

    Attributes:
        gpu: The GPU's number.
        slices: The memory slices that it surely takes of a GPU with MIG instances.
        device: What follows the GPU's name in the device's.
        consumed: What it has of a device that others have too.
        mig: What the controller says of it.
        share: Tells it from others of one device.
    """

    gpu: int
    slices: tuple[int, ...] = ()
    device: str = ""
    consumed: tuple[tuple[str, str], ...] = ()
    mig: tuple[str, int] | None = None
    share: str | None = None


def _slices(memory: int, compute: int) -> tuple[tuple[str, str], ...]:
    return ((names.CAPACITY_MEMORY_SLICES, str(memory)), (names.CAPACITY_COMPUTE_SLICES, str(compute)))


def _share(cores: int) -> tuple[tuple[str, str], ...]:
    return ((names.CAPACITY_CORES, str(cores)), (names.CAPACITY_MEMORY, "4Gi"))


# GPUs that have MIG instances, that are shared by MPS, and by time-slicing, and one with instances of an administrator.
MIG, MPS, SLICED, STATIC = (4, 5), 6, 7, 3
THERE = (("3g.40gb", 4), ("2g.20gb", 0))
# Whole GPUs by number, and parts of GPUs.
CLAIMS: dict[str, tuple[int | Part, ...]] = {
    "a": (0,),
    "b": (1,),
    "c": (0, 1),
    "d": (1, 2),
    "e": (2,),
    "f": (2, 0),
    "g": (Part(4, (0, 1, 2, 3), "-9-0"),),
    "h": (Part(4, (4, 5, 6, 7), "-9-4"), Part(5, (0, 1), "-14-0")),
    "i": (Part(5, share="i0", consumed=_slices(1, 1)), Part(5, share="i1", consumed=_slices(1, 1)), 1),
    "j": (5,),
    "k": (Part(4, (4, 5), share="k", consumed=_slices(2, 1), mig=("1g.20gb", 4)),),
    "l": (Part(MPS, share="l", consumed=_share(25)),),
    "m": (Part(MPS, share="m", consumed=_share(50)), Part(SLICED, share="m", consumed=_share(50))),
    "n": (MPS,),
    "o": (Part(SLICED, share="o", consumed=_share(10)), 2),
    "p": (SLICED,),
    "q": (Part(STATIC, (4, 5, 6, 7), "-9-4"),),
    "r": (Part(STATIC, (0, 1), "-14-0"), Part(STATIC, (4, 5, 6, 7), "-9-4")),
}


def device_manager(gpus: SimulatedGpu, mps: MpsFolder, thread: Thread) -> DeviceManager:
    """What makes these claims' parts."""
    return nvidia_hardware.of(
        edits,
        nvidia_hardware.Host(
            gpus,
            SimulatedCapabilities(),
            parent=lambda minor: DeviceNode(f"/dev/nvidia{minor}", "/dev/null"),
            common=Edits,
        ),
        mps=mps,
        made=lambda gpu: gpu != uuid(STATIC),
        sharing=lambda gpu: Sharing(by="mps" if gpu.uuid == uuid(MPS) else "time-slicing"),
        thread=thread,
    )


def administer(gpus: SimulatedGpu) -> None:
    """Make the administrator's instances, as his service does at each boot."""
    gpus.set_mig_mode(uuid(STATIC), True)
    for name, start in THERE:
        gpus.create_compute_instance(uuid(STATIC), gpus.create_gpu_instance(uuid(STATIC), PROFILES[name], start))


def administered(gpus: SimulatedGpu) -> bool:
    """Return whether they are there, and no others."""
    return set(gpus.gpu_instances(uuid(STATIC)).values()) == {(PROFILES[name].id, start) for name, start in THERE}


def allocated(name: str) -> dict[str, Any]:
    """The claim of this name as the scheduler left it."""
    results, config = [], []
    for number, part in enumerate(parts(CLAIMS[name])):
        more: dict[str, Any] = {"consumedCapacity": dict(part.consumed)} if part.consumed else {}
        more |= {"shareID": part.share} if part.share else {}
        results.append(result(f"gpu-{number}", device(part.gpu) + part.device, **more))
        if part.mig is not None:
            profile, start = part.mig
            config.append(parameters(mig={f"gpu-{number}": {"profile": profile, "starts": {uuid(part.gpu): start}}}))
    return claim(name, results=results, config=config)


def parts(wanted: tuple[int | Part, ...]) -> list[Part]:
    """What a claim wants, whole GPUs as parts too."""
    return [Part(part) if isinstance(part, int) else part for part in wanted]


def overlap(taken: set[Part], wanted: tuple[int | Part, ...]) -> bool:
    """Whether a claim wants what is taken."""
    return any(
        one.gpu == other.gpu
        and (not _is_part(one) or not _is_part(other) or one == other or bool(set(one.slices) & set(other.slices)))
        for one in parts(wanted)
        for other in taken
    )


def _is_part(part: Part) -> bool:
    return part != Part(part.gpu)
