"""Simulated GPUs that fail as GPUs do: lost ones, drivers that refuse, and MIG modes that do not end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dradriver.node.devices.control_interface import GPU_IS_LOST, IN_USE
from dradriver.node.errors import HardwareError
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology.machine import Gpu


class FailingGpus(SimulatedGpu):
    """Whoever calls is told what a GPU fails with; the processes that serve MPS need no GPU to end.

    Attributes:
        failing: The call, the code and the words of each GPU's refusal, by uuid; no call is that of all.
        pending: Uuids of GPUs whose MIG mode somebody keeps from ending.
    """

    def __init__(self, path: Path, gpus: Callable[[str], Gpu | None] = lambda _: None) -> None:
        super().__init__(path, gpus)
        self.failing: dict[str, tuple[str, int, str]] = {}
        self.pending: set[str] = set()

    def lose(self, gpu: str) -> None:
        """Let a GPU fall off the bus; what was on it will not come back with it."""
        with self.state(gpu) as state:
            state.mig, state.instances, state.users = False, {}, {}
        self.failing[gpu] = ("", GPU_IS_LOST, "GPU is lost")

    def heal(self) -> None:
        """Let every GPU do as it is told."""
        self.failing.clear()
        self.pending.clear()

    @contextlib.contextmanager
    def healthy(self) -> Iterator[None]:
        """Look at GPUs as if they answered."""
        failing, self.failing = self.failing, {}
        try:
            yield
        finally:
            self.failing = failing

    def set_mig_mode(self, gpu: str, on: bool) -> None:
        _refuse(self, gpu, "set_mig_mode")
        if gpu in self.pending and not on and self.mig_mode(gpu):
            raise HardwareError("nvmlDeviceSetMigMode", IN_USE, "In use by another client")
        super().set_mig_mode(gpu, on)


def _refuse(gpus: FailingGpus, gpu: str, name: str) -> None:
    call, code, said = gpus.failing.get(gpu, ("-", 0, ""))
    if call in ("", name):
        raise HardwareError(name, code, said)


def _failing(name: str) -> Callable[..., Any]:
    def call(self: FailingGpus, gpu: str, *args: Any) -> Any:
        _refuse(self, gpu, name)
        return getattr(SimulatedGpu, name)(self, gpu, *args)

    return call


for _name in (
    "minor",
    "mig_mode",
    "profiles",
    "gpu_instances",
    "create_gpu_instance",
    "destroy_gpu_instance",
    "compute_instances",
    "create_compute_instance",
    "destroy_compute_instance",
    "compute_mode",
    "set_compute_mode",
):
    setattr(FailingGpus, _name, _failing(_name))
