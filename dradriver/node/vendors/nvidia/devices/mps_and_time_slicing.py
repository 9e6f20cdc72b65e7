"""Shares of a GPU: several containers with the same GPU, by time-slicing or by MPS.

*Time-slicing* is what a GPU does anyway with several processes: nothing has to be made, and nothing is limited. How
much memory and time each takes is a promise among friends.

*MPS* runs the processes side by side, with limits. A control daemon of the GPU's own starts with the first share and
ends after the last; meanwhile the GPU is in mode EXCLUSIVE_PROCESS, so that nobody uses it beside the daemon. Equal
shares are the daemon's defaults, which bind every client (root of one can ask the daemon for others, and they are set
back); unequal ones are variables of the container, which a program can unset
(NVIDIA's MPS documentation, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from dradriver.api.base import names, quantity
from dradriver.api.slices import device_attributes, resource_slices
from dradriver.node.container_edits import Edits, Mount
from dradriver.node.devices import control_interface as modes
from dradriver.node.devices.control_interface import Control
from dradriver.node.devices.device_kinds import AllocatedDevice, Found
from dradriver.node.devices.hardware_journal import Change, Made
from dradriver.node.devices.part_records import MpsServed, MpsShare
from dradriver.node.devices.whole_gpus import Whole, named
from dradriver.node.errors import HardwareError
from dradriver.node.mps.mps_files import Server
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

PIPE: Final = "/tmp/nvidia-mps"  # noqa: S108  # where CUDA looks in a container
SHM: Final = "/dev/shm"  # noqa: S108
_ALL_CORES: Final = 100

MpsChange = Change[MpsShare, MpsServed]


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """How a GPU is shared.

    Attributes:
        by: By what.
        equal: The number of equal shares that it is divided into, whose limits bind; 0 where each share says its own.
        shm_mib: What the ``/dev/shm`` of all shares by MPS holds; None for the default.
    """

    by: Literal["time-slicing", "mps"] = "time-slicing"
    equal: int = 0
    shm_mib: int | None = None


class TimeSliced(Whole):
    """Shares by time-slicing: each is given the whole GPU, and as for a whole one nothing has to be made."""

    name = "share"
    part = True

    def __init__(self, edits: Callable[[Gpu], Edits], sharing: Callable[[Gpu], Sharing]) -> None:
        """Look for no share yet; the arguments are those of ``Mps``."""
        super().__init__(edits)
        self._sharing = sharing

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[None] | None:
        """Return the GPU of a time-sliced share, if the GPU is shared so."""
        part = _share(machine, wish, self._sharing)
        if part is None or self._sharing(part[0]).by != "time-slicing":
            return None
        gpu, share = part
        return Found(gpu, None, _told(share))


class Mps:
    """Shares by MPS."""

    name = "mps"
    part = True

    def __init__(
        self, edits: Callable[[Gpu], Edits], sharing: Callable[[Gpu], Sharing], folder: Callable[[str], Path]
    ) -> None:
        """Start no daemon yet.

        Args:
            edits: Says how a container is given a GPU.
            sharing: Says how a GPU is shared.
            folder: Gives the folder on the host of a GPU's control daemon, by uuid; ``pipe`` and ``shm`` are in it.
        """
        self._edits = edits
        self._sharing = sharing
        self._folder = folder

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[MpsShare] | None:
        """Return the GPU and the limits of an MPS share, if the GPU is shared so."""
        part = _share(machine, wish, self._sharing)
        if part is None or (sharing := self._sharing(part[0])).by != "mps":
            return None
        gpu, share = part
        if sharing.equal:
            share = _part(gpu, sharing.equal)
        if sharing.equal or device_attributes.gpu_of_share(wish.device) is not None:
            return Found(gpu, MpsShare(equal=share, shm_mib=sharing.shm_mib), _told(share))
        own = MpsShare(memory_mib=share.memory_mib, thread_percentage=share.thread_percentage, shm_mib=sharing.shm_mib)
        return Found(gpu, own, _told(share))

    def settle(self, control: Control, intents: Sequence[MpsChange], beside: Sequence[Made]) -> list[MpsShare]:
        """Return what is wanted of each MPS share, with the compute mode that the GPU had before its first share.

        Raises:
            HardwareError: Somebody has set a mode in which the GPU cannot be shared.
        """
        mode = next((_mode(one) for one in beside if one.kind == self.name), None)
        if mode is None:
            mode = control.compute_mode(intents[0].uuid)
        if mode not in (modes.DEFAULT, modes.EXCLUSIVE_PROCESS):
            said = f"GPU {intents[0].uuid} is in mode {mode}; set it back by nvidia-smi -c DEFAULT"
            raise HardwareError("nvmlDeviceGetComputeMode", modes.NOT_SUPPORTED, said)
        return [msgspec.structs.replace(intent.wanted, mode=mode) for intent in intents]

    def make(self, control: Control, made: MpsChange) -> Iterator[MpsChange]:
        """Request the GPU's MPS daemon for a share, and yield the share as served."""
        control.set_compute_mode(made.uuid, modes.EXCLUSIVE_PROCESS)
        control.start_mps(made.uuid, made.wanted.server)
        yield msgspec.structs.replace(made, done=MpsServed())

    def undo(self, control: Control, made: MpsChange, beside: Sequence[Made]) -> None:
        """End the GPU's MPS daemon after the last share and set the GPU's compute mode back."""
        if any(one.kind == self.name for one in beside):
            return
        control.stop_mps(made.uuid)
        control.set_compute_mode(made.uuid, _mode(made))

    def check(self, control: Control, made: MpsChange) -> None:
        """Check that the MPS daemon of a share's GPU serves by now; raise if it does not."""
        control.check_mps(made.uuid, made.wanted.server)

    def there(self, control: Control, made: MpsChange) -> bool:
        """Return True for an MPS share: an ended daemon is started again, and the mode is set again after a reset."""
        if control.compute_mode(made.uuid) == modes.DEFAULT:
            control.set_compute_mode(made.uuid, modes.EXCLUSIVE_PROCESS)
            logger.warning("GPU %s is in mode EXCLUSIVE_PROCESS again; it has shares by MPS", made.uuid)
        return True

    def rest(self, control: Control, gpu: str) -> None:
        """Change nothing: the last share's end leaves nothing of MPS."""

    def told(self, made: MpsChange) -> dict[str, Any]:
        """Return the attributes of an MPS share: how much of the GPU it is."""
        return _told(made.wanted.equal or made.wanted)

    def edits(self, gpu: Gpu, made: MpsChange) -> Edits:
        """Return the container edits of an MPS share: the whole GPU's, the way to its daemon, and its limits."""
        folder = self._folder(gpu.uuid)
        mounts = (Mount(str(folder / "pipe"), PIPE, writable=True), Mount(str(folder / "shm"), SHM, writable=True))
        env = [f"CUDA_MPS_PIPE_DIRECTORY={PIPE}"]
        if made.wanted.memory_mib is not None:
            env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={made.wanted.memory_mib}M")
        if made.wanted.thread_percentage is not None:
            env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={made.wanted.thread_percentage}")
        return self._edits(gpu) + Edits(mounts=mounts, env=tuple(env))


def _mode(made: MpsChange) -> int:
    """Return the mode that the GPU had before its first share; agents of before did not note it."""
    return modes.DEFAULT if made.wanted.mode is None else made.wanted.mode


def _share(machine: Machine, wish: AllocatedDevice, sharing: Callable[[Gpu], Sharing]) -> tuple[Gpu, Server] | None:
    """Return the GPU of which the claim has a share, and how much that is; None where the device is no share.

    Raises:
        WordError: An amount is none.
    """
    gpu = named(machine, wish.device)
    if gpu is None:
        return _equal_share(machine, wish.device, sharing)
    if gpu.mig is not None or not {names.CAPACITY_CORES, names.CAPACITY_MEMORY} & wish.consumed.keys():
        return None
    cores = _amount(wish.consumed, names.CAPACITY_CORES, _ALL_CORES)
    memory_mib = _amount(wish.consumed, names.CAPACITY_MEMORY, gpu.memory_mib << 20) >> 20
    if cores >= _ALL_CORES and memory_mib >= gpu.memory_mib:
        return None
    return gpu, Server(memory_mib=max(1, memory_mib), thread_percentage=max(1, cores))


def _equal_share(machine: Machine, device: str, sharing: Callable[[Gpu], Sharing]) -> tuple[Gpu, Server] | None:
    """Return the GPU of which a device is an equal share (``device_attributes.equal_shares``), and how much that is."""
    whole = device_attributes.gpu_of_share(device)
    gpu = None if whole is None else named(machine, whole)
    if gpu is None or gpu.mig is not None:
        return None
    return gpu, _part(gpu, sharing(gpu).equal or resource_slices.EQUAL_SHARES)


def _part(gpu: Gpu, equal: int) -> Server:
    """Return what each of so many equal shares has."""
    return Server(memory_mib=max(1, gpu.memory_mib // equal), thread_percentage=_ALL_CORES // equal)


def _told(share: Server | MpsShare) -> dict[str, Any]:
    """Return how much of a GPU a share is, in the words of slices' attributes."""
    return {
        "type": "share",
        names.CAPACITY_CORES: share.thread_percentage,
        names.CAPACITY_MEMORY: f"{share.memory_mib}Mi",
    }


def _amount(consumed: Mapping[str, str], name: str, all_of_it: int) -> int:
    return min(all_of_it, quantity.whole(consumed[name])) if name in consumed else all_of_it
