"""Finds the processes that compute on GPUs now.

Processes may use a GPU even if no claim has it.
"""

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
    """Return the ids of the processes that compute on the GPUs ``uuids``, by UUID.

    A GPU that is lost, or whose processes NVML cannot list, is not in the result.
    NVML names only processes of the caller's own PID namespace. So the agent must run in the host's PID namespace.

    Raises:
        NvmlError: A present GPU, which may be one of these, does not answer.
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
