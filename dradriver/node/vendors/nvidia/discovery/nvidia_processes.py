"""Which processes compute on GPUs now: what Kubernetes takes for free may not be."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dradriver.node.vendors.nvidia.discovery.nvml_interface import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NOT_FOUND,
    NOT_SUPPORTED,
    Nvml,
    NvmlError,
)

_NONE: Final = frozenset({GPU_IS_LOST, NOT_FOUND, NOT_SUPPORTED, FUNCTION_NOT_FOUND})


def find(nvml: Nvml, uuids: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the pids of processes on each of NVIDIA's GPUs by NVML; a lost GPU has none.

    NVML names only processes of the caller's own PID namespace: the agent's must be the host's.

    Raises:
        NvmlError: A GPU that may be one of them is there and does not say.
    """
    pids: dict[str, tuple[int, ...]] = {}
    trouble: NvmlError | None = None
    for uuid in uuids:
        try:
            pids[uuid] = nvml.processes(nvml.device(uuid))
        except NvmlError as error:
            if error.code not in _NONE:
                trouble = error
    if trouble is not None:
        raise trouble
    return pids
