"""The faults of a GPU by NVML: memory errors, the driver's recovery action, its fabric, reasons for low clocks.

``nvidia_reading`` calls this module for each GPU.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.node.faults import Fault
from dradriver.node.repairs import RECOVERIES
from dradriver.node.vendors.nvidia.discovery.failed_queries import NEWER, NvmlQuery
from dradriver.node.vendors.nvidia.discovery.nvml_interface import (
    FABRIC_IN_PROGRESS,
    INVALID_ARGUMENT,
    Fabric,
    Handle,
    Nvml,
)

_QUIET: Final = NEWER | {INVALID_ARGUMENT}

# nvml.h, nvmlDeviceGpuRecoveryAction_t.
_RECOVERY: Final = {
    1: "reset",
    2: "reboot",
    3: "drain-p2p",
    4: "drain-reset",
    5: "imex",
    6: "bus-reset",
    7: "reboot",
}

# nvml.h, nvmlClocksEventReason…: those that an administrator should know of. A power cap (4) is how a busy GPU runs.
_HW_SLOWDOWN: Final = 0x8
_SW_THERMAL: Final = 0x20
_HW_THERMAL: Final = 0x40
_POWER_BRAKE: Final = 0x80

# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK…: shift, width, what it says by value; others are well, or not told.
_FABRIC: Final = (
    (0, 3, {1: "bandwidth is degraded"}),
    (4, 3, {1: "its routes are unhealthy"}),
    (
        8,
        15,
        {
            2: "wrong system GUID",
            3: "wrong chassis",
            4: "no partition",
            5: "too few NVLinks",
            6: "incompatible firmware",
            7: "wrong location",
            8: "invalid state",
        },
    ),
)

_UNTOLD: Final[tuple[bool | None, bool]] = (None, False)


class Condition(msgspec.Struct, frozen=True):
    """The condition of one GPU.

    Attributes:
        faults: The GPU's faults.
        sound: True if the driver says that the GPU needs no recovery action, such as a reset. False if it needs one, or
            if unknown.
        row: Whether a bad row of the GPU's memory will be remapped at the next reset (nvml.h,
            nvmlDeviceGetRemappedRows); None if unknown.
    """

    faults: tuple[Fault, ...]
    sound: bool
    row: bool | None = None


def read(nvml: Nvml, gpu: Handle, fabric: Fabric, asked: NvmlQuery) -> Condition:
    """Return a GPU's faults by NVML, and whether the GPU needs a recovery action.

    A query that the product or driver does not support shows no fault.

    Args:
        nvml: The open library.
        gpu: The GPU's handle.
        fabric: The GPU's state in its NVLink fabric.
        asked: Asks NVML about this GPU and stores failed queries as problems.
    """
    faults = []
    if errors := asked.ask(nvml.uncorrected_errors, gpu, default=0, quiet=_QUIET):
        faults.append(Fault("ecc", "uncorrected", f"{errors} uncorrected memory errors since the driver was loaded"))
    pending, failed = asked.ask(nvml.row_remaps, gpu, default=_UNTOLD, quiet=_QUIET)
    if failed:
        faults.append(Fault("row-remap-failed", "", "a bad row of the GPU's memory could not be remapped"))
    elif pending:
        faults.append(Fault("row-remap-pending", "", "a bad row of the GPU's memory is remapped at the next reset"))
    action = asked.ask(nvml.recovery_action, gpu, default=None, quiet=_QUIET)
    if action is not None and action in _RECOVERY:
        asked_for = _RECOVERY[action]
        faults.append(Fault("recovery", asked_for, RECOVERIES[asked_for].words))
    faults += _fabric(fabric)
    faults += _slow(asked.ask(nvml.slow_reasons, gpu, default=0, quiet=_QUIET))
    return Condition(tuple(faults), action == 0, pending)


def _fabric(fabric: Fabric) -> list[Fault]:
    """Return the faults of a GPU's NVLink fabric.

    If the GPU has not joined the fabric, CUDA cannot start (error 802, system not yet initialized). Other faults make
    it slow. The driver says "in progress" from its first request to the fabric manager until the answer. For a GPU
    without switches it says "not supported" (open-gpu-kernel-modules, subdeviceCtrlCmdGetGpuFabricProbeInfo_IMPL).
    """
    if fabric.state == FABRIC_IN_PROGRESS:
        return [Fault("fabric", "in-progress", "the GPU has not joined its NVLink fabric")]
    if fabric.status:
        return [Fault("fabric", "failed", f"the NVLink fabric refused the GPU (NVML status {fabric.status})")]
    said = [words[value] for shift, width, words in _FABRIC if (value := fabric.health >> shift & width) in words]
    return [Fault("fabric", "", f"NVLink fabric: {', '.join(said)}")] if said else []


def _slow(reasons: int) -> list[Fault]:
    faults = []
    if reasons & (_SW_THERMAL | _HW_THERMAL):
        faults.append(Fault("thermal", "", "the GPU has lowered its clocks, because it is too hot"))
    if reasons & _POWER_BRAKE:
        faults.append(Fault("power", "", "the server's power brake has lowered the GPU's clocks"))
    if not faults and reasons & _HW_SLOWDOWN:
        faults.append(
            Fault("thermal", "", "the GPU has lowered its clocks, because it is too hot or gets too little power")
        )
    return faults
