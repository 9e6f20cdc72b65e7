"""Errors of the node agent; a claim's error is what the kubelet writes into the pod's events."""

from __future__ import annotations

import math

from dradriver.errors import DriverError


class SetupError(DriverError):
    """The agent cannot start like this: a flag, a path or another process is in the way."""

    reason = "BadSetup"


class RestartError(DriverError):
    """This process can do no more of its work; one that starts afresh can."""

    reason = "Restart"


class ClaimError(DriverError):
    """A claim cannot be prepared, and waiting will not change that."""

    reason = "ClaimUnusable"


class NotYetError(ClaimError):
    """A claim cannot be prepared now; what is missing may come right by itself, so it is tried again."""

    reason = "NotYet"

    def __init__(self, message: str, *, patience_s: float = math.inf) -> None:
        super().__init__(message)
        self.patience_s = patience_s  # how long trying again makes sense


class DeviceBusyError(NotYetError):
    """Another claim still holds the device: its unprepare may come after the new claim's prepare."""

    reason = "DeviceBusy"


class OccupiedError(NotYetError):
    """Processes are on the device that no claim accounts for."""

    reason = "Occupied"


class DeviceMissingError(NotYetError):
    """The device is not on this machine now."""

    reason = "DeviceMissing"


class InUseError(NotYetError):
    """A process is on a device that is to be undone."""

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
