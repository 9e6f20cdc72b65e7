"""The calls that change hardware. Only this folder may import them: nothing else can break a GPU that somebody uses."""

from __future__ import annotations

from typing import Final, Protocol

# Why a call is refused (nvml.h, nvmlReturn_t).
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23


class Control(Protocol):
    """Every method may raise ``HardwareError`` (dradriver/node/errors.py). GPUs are named by uuid."""

    def create_gpu_instance(self, gpu: str, profile: str, start: int) -> int:
        """Make a GPU instance at a placement and return its number; ``INSUFFICIENT_RESOURCES`` where it is taken."""

    def destroy_gpu_instance(self, gpu: str, instance: int) -> None:
        """Take a GPU instance away; ``IN_USE`` while it has compute instances, ``NOT_FOUND`` where there is none."""

    def gpu_instances(self, gpu: str) -> dict[int, tuple[str, int]]:
        """Return profile and start of each GPU instance by its number."""

    def create_compute_instance(self, gpu: str, instance: int) -> str:
        """Make the compute instance that takes all of a GPU instance, and return the MIG device's uuid."""

    def destroy_compute_instance(self, gpu: str, instance: int) -> None:
        """Take it away; ``IN_USE`` while a process uses it, ``NOT_FOUND`` where there is none."""

    def set_exclusive(self, gpu: str, exclusive: bool) -> None:
        """Have the GPU take one process alone, as MPS wants it, or any number; it stays so until the next boot."""

    def start_mps(self, gpu: str, pipe: str) -> None:
        """Serve shares of the GPU through the pipe directory; one that is served there already is fine."""

    def stop_mps(self, gpu: str) -> None:
        """Serve no shares of the GPU any more; its clients end. None served is fine."""
