"""The kinds of shares of a GPU: several containers use the same GPU, by time-slicing or by MPS.

With *time-slicing*, the GPU runs the processes of the containers in turn, as it does with any processes. The agent
starts no daemon and changes nothing on the GPU. No program limits how much memory and time each container takes.

With *MPS*, the GPU runs the processes at the same time, with limits. A control daemon for the GPU starts with the first
share and ends after the last share. While it runs, the GPU is in mode EXCLUSIVE_PROCESS, so no process can use the GPU
without the daemon.

The limits of equal shares are defaults of the daemon, which every client gets. Root in a container can ask the daemon
for other limits, but the supervisor (``node.mps``), the program that runs the daemons, sets them back. The limits of
unequal shares are variables of the container, which a program can unset (NVIDIA's MPS documentation,
"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").

A *journal entry* is the agent's record on disk of an MPS share of a claim (``hardware_journal``).
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
        by: The method: time-slicing or MPS.
        equal: The number of equal shares, whose limits a container cannot lift; 0 if each share has its own size.
        shm_mib: The size in MiB of the ``/dev/shm`` of all MPS shares; None for the default.
    """

    by: Literal["time-slicing", "mps"] = "time-slicing"
    equal: int = 0
    shm_mib: int | None = None


class TimeSliced(Whole):
    """The kind of time-sliced shares: each gets the device nodes of the whole GPU, and needs no daemon."""

    name = "share"
    part = True

    def __init__(self, edits: Callable[[Gpu], Edits], sharing: Callable[[Gpu], Sharing]) -> None:
        """Store the arguments; look for no share yet.

        Args:
            edits: Returns the container edits of a GPU.
            sharing: Returns how a GPU is shared.
        """
        super().__init__(edits)
        self._sharing = sharing

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[None] | None:
        """Return the GPU of a time-sliced share; None for another device.

        ``wish`` is the device as the claim's allocation describes it.
        """
        part = _share(machine, wish, self._sharing)
        if part is None or self._sharing(part[0]).by != "time-slicing":
            return None
        gpu, share = part
        return Found(gpu, None, _told(share))


class Mps:
    """The kind of MPS shares."""

    name = "mps"
    part = True

    def __init__(
        self, edits: Callable[[Gpu], Edits], sharing: Callable[[Gpu], Sharing], folder: Callable[[str], Path]
    ) -> None:
        """Store the arguments; start no daemon yet.

        Args:
            edits: Returns the container edits of a GPU.
            sharing: Returns how a GPU is shared.
            folder: Returns the folder on the host of a GPU's control daemon, by uuid; ``pipe`` and ``shm`` are in it.
        """
        self._edits = edits
        self._sharing = sharing
        self._folder = folder

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[MpsShare] | None:
        """Return the GPU and limits of an MPS share; None for another device.

        ``wish`` is the device as the claim's allocation describes it.
        """
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
        """Return the record of each MPS share to make, for the hardware journal.

        The record has the compute mode (who may use the GPU) from before the GPU's first share, which ``undo``
        restores.

        Raises:
            HardwareError: The GPU is in a compute mode in which it cannot be shared.
        """
        mode = next((_mode(one) for one in beside if one.kind == self.name), None)
        if mode is None:
            mode = control.compute_mode(intents[0].uuid)
        if mode not in (modes.DEFAULT, modes.EXCLUSIVE_PROCESS):
            said = f"GPU {intents[0].uuid} is in mode {mode}. Set it back by nvidia-smi -c DEFAULT."
            raise HardwareError("nvmlDeviceGetComputeMode", modes.NOT_SUPPORTED, said)
        return [msgspec.structs.replace(intent.wanted, mode=mode) for intent in intents]

    def make(self, control: Control, made: MpsChange) -> Iterator[MpsChange]:
        """Request the GPU's MPS daemon for a share; then yield the share's journal entry.

        The GPU's compute mode is first set so that only the daemon can use the GPU.
        """
        control.set_compute_mode(made.uuid, modes.EXCLUSIVE_PROCESS)
        control.start_mps(made.uuid, made.wanted.server)
        yield msgspec.structs.replace(made, done=MpsServed())

    def undo(self, control: Control, made: MpsChange, beside: Sequence[Made]) -> None:
        """After a GPU's last share, end its MPS daemon and restore its compute mode.

        ``beside`` has the journal entries of the GPU's other devices. If one of them is a share, nothing is done.
        """
        if any(one.kind == self.name for one in beside):
            return
        control.stop_mps(made.uuid)
        control.set_compute_mode(made.uuid, _mode(made))

    def check(self, control: Control, made: MpsChange) -> None:
        """Check that the MPS daemon of a share's GPU serves with the share's limits.

        If not, the error is HardwareError.
        """
        control.check_mps(made.uuid, made.wanted.server)

    def there(self, control: Control, made: MpsChange) -> bool:
        """Return True, because an MPS share can always be repaired while containers use it.

        The supervisor starts an ended daemon again. If the GPU lost its compute mode in a reset, this method sets it
        again.
        """
        if control.compute_mode(made.uuid) == modes.DEFAULT:
            control.set_compute_mode(made.uuid, modes.EXCLUSIVE_PROCESS)
            logger.warning(
                "GPU %s has MPS shares and had lost its compute mode. It was set to EXCLUSIVE_PROCESS again.", made.uuid
            )
        return True

    def rest(self, control: Control, gpu: str) -> None:
        """Do nothing: after the last share nothing of MPS is left on the GPU."""

    def told(self, made: MpsChange) -> dict[str, Any]:
        """Return the attributes of an MPS share: its type, its percentage of the cores, and its memory."""
        return _told(made.wanted.equal or made.wanted)

    def edits(self, gpu: Gpu, made: MpsChange) -> Edits:
        """Return the container edits of an MPS share.

        These are the edits of the whole GPU, the daemon's folders ``pipe`` and ``shm``, and a variable with the path of
        ``pipe``. A share with limits of its own also gets variables with the limits.
        """
        folder = self._folder(gpu.uuid)
        mounts = (Mount(str(folder / "pipe"), PIPE, writable=True), Mount(str(folder / "shm"), SHM, writable=True))
        env = [f"CUDA_MPS_PIPE_DIRECTORY={PIPE}"]
        if made.wanted.memory_mib is not None:
            env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={made.wanted.memory_mib}M")
        if made.wanted.thread_percentage is not None:
            env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={made.wanted.thread_percentage}")
        return self._edits(gpu) + Edits(mounts=mounts, env=tuple(env))


def _mode(made: MpsChange) -> int:
    """Return the compute mode that the GPU had before its first share.

    The mode says who may use the GPU. If an old agent wrote the entry ``made``, the mode is not recorded, and the
    result is ``DEFAULT``.
    """
    return modes.DEFAULT if made.wanted.mode is None else made.wanted.mode


def _share(machine: Machine, wish: AllocatedDevice, sharing: Callable[[Gpu], Sharing]) -> tuple[Gpu, Server] | None:
    """Return the GPU and limits of the claim's share; None for another device.

    ``wish`` is the device as the claim's allocation describes it. ``sharing`` returns how a GPU is shared.

    Raises:
        WordError: An amount is not a quantity.
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
    """Return the GPU and limits of one of a GPU's equal shares, by device name.

    The result is None if the device is no equal share. The names of equal shares are those of
    ``device_attributes.equal_shares``.
    """
    whole = device_attributes.gpu_of_share(device)
    gpu = None if whole is None else named(machine, whole)
    if gpu is None or gpu.mig is not None:
        return None
    return gpu, _part(gpu, sharing(gpu).equal or resource_slices.EQUAL_SHARES)


def _part(gpu: Gpu, equal: int) -> Server:
    """Return the limits of each share if a GPU is divided into this number of equal shares."""
    return Server(memory_mib=max(1, gpu.memory_mib // equal), thread_percentage=_ALL_CORES // equal)


def _told(share: Server | MpsShare) -> dict[str, Any]:
    """Return the attributes of a share, named as in ResourceSlices: type, cores (percent), memory."""
    return {
        "type": "share",
        names.CAPACITY_CORES: share.thread_percentage,
        names.CAPACITY_MEMORY: f"{share.memory_mib}Mi",
    }


def _amount(consumed: Mapping[str, str], name: str, all_of_it: int) -> int:
    return min(all_of_it, quantity.whole(consumed[name])) if name in consumed else all_of_it
