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
    """The interface of every control of GPUs, which are named by uuid.

    Every method but ``driver`` may raise ``HardwareError`` (dradriver/node/errors.py).
    """

    def driver(self) -> str:
        """Return by any control the identifier of this load of the driver's module; empty if none is loaded.

        It does not ask the driver, and may be called in any thread.
        """

    def minor(self, gpu: str) -> int:
        """Return by any control N of ``/dev/nvidiaN``, which a change of MIG mode may change."""

    def mig_mode(self, gpu: str) -> bool:
        """Return by any control whether MIG mode of a GPU is on."""

    def set_mig_mode(self, gpu: str, on: bool) -> None:
        """Turn MIG mode on or off by any control; where it is off, a change that waits for a reset is taken back.

        ``IN_USE`` while a process or an instance is on the GPU, ``RESET_REQUIRED`` where only a reset would do it.
        """

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return by any control the MIG profiles that instances of a GPU can be created with."""

    def gpu_instances(self, gpu: str) -> dict[int, Placed]:
        """Return by any control where each GPU instance is, by its number; none with MIG mode off."""

    def create_gpu_instance(self, gpu: str, profile: MigProfile, start: int) -> int:
        """Create a GPU instance by any control and return its number; ``INSUFFICIENT_RESOURCES`` without room."""

    def destroy_gpu_instance(self, gpu: str, instance: int) -> None:
        """Destroy a GPU instance by any control; ``IN_USE`` with compute instances, ``NOT_FOUND`` without it."""

    def compute_instances(self, gpu: str, instance: int) -> dict[int, str]:
        """Return by any control the MIG device's uuid of each compute instance of a GPU instance, by its number."""

    def create_compute_instance(self, gpu: str, instance: int) -> int:
        """Create by any control the compute instance that takes all of a GPU instance, and return its number."""

    def destroy_compute_instance(self, gpu: str, instance: int, compute: int) -> None:
        """Destroy a compute instance by any control; ``IN_USE`` while a process uses it, ``NOT_FOUND`` without it."""

    def processes(self, gpu: str, instance: int, compute: int) -> int:
        """Return by any control how many processes compute on the MIG device of a compute instance to be destroyed."""

    def compute_mode(self, gpu: str) -> int:
        """Return by any control who may use the GPU: the compute mode, one of those above."""

    def set_compute_mode(self, gpu: str, mode: int) -> None:
        """Set by any control who may use the GPU: the compute mode, which stays so until the next boot."""

    def start_mps(self, gpu: str, server: Server) -> None:
        """Start MPS shares of the GPU by any control with these limits; ``IN_USE`` if others are served."""

    def check_mps(self, gpu: str, server: Server) -> None:
        """Check by any control that MPS shares of the GPU are served with these limits; raise ``TIMEOUT`` if not.

        It asks no driver, and may be called in any thread.
        """

    def stop_mps(self, gpu: str) -> None:
        """End MPS shares of the GPU by any control, and return when none is served; its clients end."""
