"""The calls that change hardware. Only this folder may import them: nothing else can break a GPU that somebody uses."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from dradriver.node.mps.mps_files import Server
from dradriver.topology.machine import MigProfile

# Why a call is refused (nvml.h, nvmlReturn_t).
UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
TIMEOUT: Final = 10
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23

# Compute modes (nvml.h, nvmlComputeMode_t).
DEFAULT: Final = 0
EXCLUSIVE_PROCESS: Final = 3


class Placed(NamedTuple):
    """Where a GPU instance is: its profile's id and its first memory slice."""

    profile: int
    start: int


class Control(Protocol):
    """Every method but ``driver`` may raise ``HardwareError`` (dradriver/node/errors.py). GPUs are named by uuid."""

    def driver(self) -> str:
        """Return the identifier of this load of the driver's module; empty if none is loaded.

        It does not ask the driver, and may be called in any thread.
        """

    def minor(self, gpu: str) -> int:
        """Return N of ``/dev/nvidiaN``, which a change of MIG mode may change."""

    def mig_mode(self, gpu: str) -> bool:
        """Return whether MIG mode of a GPU that may be changed is on."""

    def set_mig_mode(self, gpu: str, on: bool) -> None:
        """Turn MIG mode on or off now; what waits for a reset to turn it on is taken back where it is off.

        ``IN_USE`` while a process or an instance is on the GPU, ``RESET_REQUIRED`` where only a reset would do it.
        """

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return the MIG profiles that instances of a GPU can be created with."""

    def gpu_instances(self, gpu: str) -> dict[int, Placed]:
        """Return where each GPU instance is, by its number; none with MIG mode off."""

    def create_gpu_instance(self, gpu: str, profile: MigProfile, start: int) -> int:
        """Make a GPU instance at a placement and return its number; ``INSUFFICIENT_RESOURCES`` where it is taken."""

    def destroy_gpu_instance(self, gpu: str, instance: int) -> None:
        """Destroy a GPU instance; ``IN_USE`` while it has compute instances, ``NOT_FOUND`` where there is none."""

    def compute_instances(self, gpu: str, instance: int) -> dict[int, str]:
        """Return the MIG device's uuid of each compute instance of a GPU instance, by its number there."""

    def create_compute_instance(self, gpu: str, instance: int) -> int:
        """Make the compute instance that takes all of a GPU instance, and return its number there."""

    def destroy_compute_instance(self, gpu: str, instance: int, compute: int) -> None:
        """Destroy a compute instance; ``IN_USE`` while a process uses it, ``NOT_FOUND`` where there is none."""

    def processes(self, gpu: str, instance: int, compute: int) -> int:
        """Return how many processes compute on a compute instance's MIG device that may be destroyed."""

    def compute_mode(self, gpu: str) -> int:
        """Return who may use the GPU, by its compute mode: one of those above."""

    def set_compute_mode(self, gpu: str, mode: int) -> None:
        """Change who may use the GPU, by its compute mode; it stays so until the next boot."""

    def start_mps(self, gpu: str, server: Server) -> None:
        """Start to serve MPS shares of the GPU with these limits; ``IN_USE`` if they are served with others."""

    def check_mps(self, gpu: str, server: Server) -> None:
        """Raise ``TIMEOUT``, and why, unless shares of the GPU are served with these limits now.

        It asks no driver, and may be called in any thread.
        """

    def stop_mps(self, gpu: str) -> None:
        """Return when no shares of the GPU are served any more; its clients end. None served is fine."""
