"""Reads from NVML how much GPUs work.

NVML reports the work of the whole GPU in the last second, and of each process since the last query.

In MIG mode NVML reports neither (nvml.h, nvmlDeviceGetUtilizationRates and nvmlDeviceGetProcessUtilization). An
instance without any process does nothing. If an instance has a process, its work is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from dradriver.node.gpu_work import UNKNOWN, GpuWork
from dradriver.node.vendors.nvidia.discovery.nvml_interface import Handle, Nvml, NvmlError

T = TypeVar("T")


def find(nvml: Nvml, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
    """Return by NVML how much NVIDIA's GPUs worked since the agent last asked.

    Args:
        nvml: The open library.
        gpus: By uuid of each GPU, the time up to which the agent knows its work, in microseconds since the epoch.
    """
    return {uuid: _of(nvml, uuid, since_us) for uuid, since_us in gpus.items()}


def _of(nvml: Nvml, uuid: str, since_us: int) -> GpuWork:
    handle = _unless(lambda: nvml.device(uuid))
    if handle is None:
        return UNKNOWN
    gpu: Handle = handle
    mode = _unless(lambda: nvml.mig_mode(gpu))
    if mode is not None and mode[0]:
        return GpuWork(instances=_unless(lambda: nvml.instances(gpu)))
    samples = _unless(lambda: nvml.samples(gpu, since_us))
    some = [] if samples is None else [sample for sample in samples if sample.at_us > since_us]
    return GpuWork(
        percent=_unless(lambda: nvml.utilization(gpu)),
        pids=None if samples is None else frozenset(sample.pid for sample in some if sample.percent),
        until_us=max((sample.at_us for sample in some), default=0),
    )


def _unless(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except NvmlError:
        return None
