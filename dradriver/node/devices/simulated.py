"""Hardware that can be changed, in a file: MIG instances, compute mode and MPS of simulated GPUs.

It refuses what a GPU refuses, in the same words and order (NVML's MIG functions, nvml.h; MPS documentation): an
occupied placement is INSUFFICIENT_RESOURCES, a GPU instance with a compute instance and a compute instance with a
process are IN_USE, what is not there is NOT_FOUND. Like a GPU it forgets all at a reboot.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from dradriver.node import files
from dradriver.node.devices.control import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
)
from dradriver.node.errors import HardwareError

# Where profiles of seven-slice parts may start, and how many of the eight memory slices each takes: real
# ``nvidia-smi mig -lgipp`` of A100, H100, H200 and B200. Sizes in gigabytes differ, slices do not.
_PLACEMENTS: Final[dict[str, tuple[tuple[int, ...], int]]] = {
    "1g": ((0, 1, 2, 3, 4, 5, 6), 1),
    "2g": ((0, 2, 4), 2),
    "3g": ((0, 4), 4),
    "4g": ((0,), 4),
    "7g": ((0,), 8),
}
_MOST_COMPUTE: Final = 7


class Instance(msgspec.Struct):
    """One GPU instance; ``device`` is the MIG device's uuid once it has its compute instance."""

    profile: str
    start: int
    device: str = ""


class State(msgspec.Struct):
    """One GPU. ``users`` are processes on it, or on MIG devices of it, by pid; the empty uuid is the GPU itself."""

    mig: bool = False
    exclusive: bool = False
    pipe: str = ""
    instances: dict[int, Instance] = {}
    users: dict[int, str] = {}


class SimulatedGpu:
    """``Control`` of all GPUs of a simulated node; one whose uuid the file does not name is as it left the factory."""

    def __init__(self, path: Path) -> None:
        """Keep the file's path; it is read for every call, so that tests and other instances may write it."""
        self._path = path

    @contextmanager
    def state(self, gpu: str) -> Iterator[State]:
        """Give a GPU's state, and keep what was made of it unless an error ends the block.

        Raises:
            OSError: The file cannot be written.
        """
        all_of = self._read()
        one = all_of.setdefault(gpu, State())
        yield one
        self._path.parent.mkdir(parents=True, exist_ok=True)
        files.write(self._path, msgspec.json.encode(all_of))

    def reboot(self) -> None:
        """Forget what no reboot leaves; MIG mode stays (it is in the GPU's own memory before Hopper)."""
        files.write(self._path, msgspec.json.encode({gpu: State(mig=one.mig) for gpu, one in self._read().items()}))

    def create_gpu_instance(self, gpu: str, profile: str, start: int) -> int:
        """Make a GPU instance at a placement and return its number."""
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        starts, size = _placement(call, profile)
        with self.state(gpu) as state:
            if not state.mig:
                raise HardwareError(call, NOT_SUPPORTED, "Not Supported")
            if start not in starts:
                raise HardwareError(call, INVALID_ARGUMENT, "Invalid Argument")
            taken = {n for one in state.instances.values() for n in _span(one.profile, one.start)}
            compute = sum(int(one.profile[0]) for one in state.instances.values())
            if taken & set(range(start, start + size)) or compute + int(profile[0]) > _MOST_COMPUTE:
                raise HardwareError(call, INSUFFICIENT_RESOURCES, "Insufficient Resources")
            number = next(n for n in range(1, 16) if n not in state.instances)
            state.instances[number] = Instance(profile, start)
        return number

    def destroy_gpu_instance(self, gpu: str, instance: int) -> None:
        """Take a GPU instance away."""
        call = "nvmlGpuInstanceDestroy"
        with self.state(gpu) as state:
            if _instance(call, state, instance).device:
                raise HardwareError(call, IN_USE, "In use by another client")
            del state.instances[instance]

    def gpu_instances(self, gpu: str) -> dict[int, tuple[str, int]]:
        """Return profile and start of each GPU instance by its number."""
        state = self._read().get(gpu, State())
        return {number: (one.profile, one.start) for number, one in state.instances.items()}

    def create_compute_instance(self, gpu: str, instance: int) -> str:
        """Make a GPU instance's compute instance and return the MIG device's uuid."""
        call = "nvmlGpuInstanceCreateComputeInstance"
        with self.state(gpu) as state:
            one = _instance(call, state, instance)
            if one.device:
                raise HardwareError(call, INSUFFICIENT_RESOURCES, "Insufficient Resources")
            # The same placement has the same uuid as long as the machine runs (NVIDIA MIG user guide).
            one.device = f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu} {one.profile} {one.start}')}"
            return one.device

    def destroy_compute_instance(self, gpu: str, instance: int) -> None:
        """Take it away."""
        call = "nvmlComputeInstanceDestroy"
        with self.state(gpu) as state:
            one = _instance(call, state, instance)
            if not one.device:
                raise HardwareError(call, NOT_FOUND, "Not Found")
            if one.device in state.users.values():
                raise HardwareError(call, IN_USE, "In use by another client")
            one.device = ""

    def set_exclusive(self, gpu: str, exclusive: bool) -> None:
        """Have the GPU take one process alone, or any number."""
        with self.state(gpu) as state:
            if state.mig:
                raise HardwareError("nvmlDeviceSetComputeMode", NOT_SUPPORTED, "Not Supported")
            state.exclusive = exclusive

    def start_mps(self, gpu: str, pipe: str) -> None:
        """Serve shares of the GPU through the pipe directory."""
        with self.state(gpu) as state:
            if state.pipe and state.pipe != pipe:
                raise HardwareError("nvidia-cuda-mps-control", IN_USE, f"a server is at {state.pipe}")
            state.pipe = pipe

    def stop_mps(self, gpu: str) -> None:
        """Serve no shares of the GPU any more."""
        with self.state(gpu) as state:
            state.pipe = ""

    def _read(self) -> dict[str, State]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, State])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise HardwareError(str(self._path), INVALID_ARGUMENT, f"{error}; remove this file") from error


def _placement(call: str, profile: str) -> tuple[tuple[int, ...], int]:
    found = _PLACEMENTS.get(profile.split(".", 1)[0])
    if found is None:
        raise HardwareError(call, INVALID_ARGUMENT, "Invalid Argument")
    return found


def _span(profile: str, start: int) -> range:
    return range(start, start + _PLACEMENTS[profile.split(".", 1)[0]][1])


def _instance(call: str, state: State, number: int) -> Instance:
    found = state.instances.get(number)
    if found is None:
        raise HardwareError(call, NOT_FOUND, "Not Found")
    return found
