"""Errors of the node agent; the kubelet writes the error of a claim into the pod's events."""

from __future__ import annotations

import math

from dradriver.errors import DriverError


class SetupError(DriverError):
    """The agent cannot start with this setup, because of an option, a path or another process."""

    reason = "BadSetup"


class RestartError(DriverError):
    """This process cannot do its work any more, but a new process can."""

    reason = "Restart"


class ClaimError(DriverError):
    """A claim cannot be prepared, and waiting will not change that."""

    reason = "ClaimUnusable"


class NotYetError(ClaimError):
    """A claim cannot be prepared now.

    The agent tries again during the kubelet's call, because the obstacle may be gone soon. For example, another claim
    may release the GPU.
    """

    reason = "NotYet"

    def __init__(self, message: str, *, patience_s: float = math.inf) -> None:
        super().__init__(message)
        self.patience_s = patience_s  # how long trying again makes sense


class DeviceBusyError(NotYetError):
    """Another claim still has the device.

    It may be released soon: the kubelet can unprepare the old claim after its first call to prepare the new claim.
    """

    reason = "DeviceBusy"


class OccupiedError(NotYetError):
    """Processes that belong to no claim are on the device."""

    reason = "Occupied"


class DeviceMissingError(NotYetError):
    """The device is not on this machine now."""

    reason = "DeviceMissing"


class InUseError(NotYetError):
    """A process is on a device that the agent has to undo."""

    reason = "InUse"


class HardwareError(NotYetError):
    """The hardware refused a change; another try may succeed.

    Attributes:
        code: NVML's return value.
    """

    reason = "HardwareRefused"

    def __init__(self, call: str, code: int, said: str) -> None:
        super().__init__(f"{call}: {said} ({code})")
        self.code = code
