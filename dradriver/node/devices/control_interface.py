"""The interface of the calls that change GPUs.

Only the code for devices may make these calls, so that no other code can disturb a GPU in use.

Words such as ``IN_USE`` name the ``code`` of a ``HardwareError``. The codes are NVML's return values. A MIG instance
consists of a GPU instance (a part of the GPU's memory and engines) and a compute instance in it, which runs the
programs.
"""

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
    """The place of a MIG instance on its GPU: profile id and first memory slice."""

    profile: int
    start: int


class Control(Protocol):
    """The interface of all code that changes GPUs; GPUs are named by uuid.

    Every method except ``driver`` may raise ``HardwareError`` (dradriver/node/errors.py).
    """

    def driver(self) -> str:
        """Return an id that is new each time that the GPUs' kernel module is loaded.

        The id is empty if the module is not loaded. This method does not call the driver, so any thread may use it.
        """

    def minor(self, gpu: str) -> int:
        """Return the minor number N of a GPU's device node ``/dev/nvidiaN``.

        A change of MIG mode may change it.
        """

    def mig_mode(self, gpu: str) -> bool:
        """Return whether MIG mode of a GPU is on."""

    def set_mig_mode(self, gpu: str, on: bool) -> None:
        """Turn MIG mode of a GPU on (``on`` is True) or off.

        If the GPU can change the mode only at a reset, nothing is changed. A killed agent may have left a request to
        turn MIG mode on at the next reset. Turning MIG mode off cancels it.

        The error is ``IN_USE`` while a process or an instance is on the GPU, ``RESET_REQUIRED`` if the GPU can change
        the mode only at a reset.
        """

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return the MIG profiles of which instances can be created on a GPU."""

    def gpu_instances(self, gpu: str) -> dict[int, Placed]:
        """Return the place of each GPU instance by its number; empty if MIG mode is off."""

    def create_gpu_instance(self, gpu: str, profile: MigProfile, start: int) -> int:
        """Create a GPU instance and return its number; the error is ``INSUFFICIENT_RESOURCES`` if there is no room.

        ``start`` is the first memory slice of the instance.
        """

    def destroy_gpu_instance(self, gpu: str, instance: int) -> None:
        """Destroy a GPU instance.

        The error is ``IN_USE`` if the instance has compute instances, ``NOT_FOUND`` if it does not exist.
        """

    def compute_instances(self, gpu: str, instance: int) -> dict[int, str]:
        """Return the uuid of the MIG device of each compute instance, by the compute instance's number."""

    def create_compute_instance(self, gpu: str, instance: int) -> int:
        """Create the compute instance that takes all of a GPU instance, and return its number."""

    def destroy_compute_instance(self, gpu: str, instance: int, compute: int) -> None:
        """Destroy a compute instance.

        The error is ``IN_USE`` while a process uses the instance, ``NOT_FOUND`` if it does not exist.
        """

    def processes(self, gpu: str, instance: int, compute: int) -> int:
        """Return how many processes compute on the MIG device of a compute instance.

        The agent asks this before it destroys the compute instance.
        """

    def compute_mode(self, gpu: str) -> int:
        """Return the GPU's compute mode, which says who may use the GPU, for example ``EXCLUSIVE_PROCESS``."""

    def set_compute_mode(self, gpu: str, mode: int) -> None:
        """Set the GPU's compute mode, which says who may use the GPU. The mode lasts until the next boot."""

    def start_mps(self, gpu: str, server: Server) -> None:
        """Start to serve MPS shares of a GPU with the settings ``server``.

        The error is ``IN_USE`` if the GPU is already served with other settings.
        """

    def check_mps(self, gpu: str, server: Server) -> None:
        """Check that MPS serves shares of a GPU with the settings ``server``.

        If no daemon runs, or it has other settings, the error is ``TIMEOUT``. This method does not call the driver, so
        any thread may use it.
        """

    def stop_mps(self, gpu: str) -> None:
        """Stop serving MPS shares of a GPU, and wait until the MPS daemon has ended.

        Programs that use a share end with the daemon.
        """
