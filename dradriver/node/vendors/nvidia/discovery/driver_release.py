"""Tells by the node's labels when all processes must close NVIDIA's driver, for example for an update.

An open NVML session keeps the driver's module loaded and prevents a reset of GPUs. So ``nvidia_gpus`` and
``NvmlControl`` close their sessions when this module gives a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dradriver.api.base import names

# The GPU operator's upgrade controller (k8s-operator-libs pkg/upgrade/consts.go): from when it empties the node until
# the new driver runs. While jobs are waited for the driver is in use and stays held.
_STATE: Final = "nvidia.com/gpu-driver-upgrade-state"
_EMPTYING: Final = frozenset(
    {
        "pod-deletion-required",
        "drain-required",
        "node-maintenance-required",
        "post-maintenance-required",
        "pod-restart-required",
    }
)
# Its driver manager and MIG manager, before they unload the module or reset GPUs, stop whoever holds the driver:
# "paused-for-driver-upgrade", "paused-for-mig-change".
_DEPLOY: Final = "nvidia.com/gpu.deploy."
_PAUSED: Final = "paused-for-"


def reason(labels: Mapping[str, str]) -> str | None:
    """Return why all processes must close the driver, by the node's labels; None if they may keep it open."""
    if names.DRIVER_LABEL in labels:
        return f"node label {names.DRIVER_LABEL}={labels[names.DRIVER_LABEL]}"
    if labels.get(_STATE) in _EMPTYING:
        return f"node label {_STATE}={labels[_STATE]}"
    for key, value in sorted(labels.items()):
        if key.startswith(_DEPLOY) and value.startswith(_PAUSED):
            return f"node label {key}={value}"
    return None
