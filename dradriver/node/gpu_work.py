"""How much a GPU worked since the agent last asked the driver."""

from __future__ import annotations

import msgspec


class GpuWork(msgspec.Struct, frozen=True):
    """The work of a GPU since the last time that the agent asked.

    Unknown values are None.

    Attributes:
        percent: Percentage of time in which the GPU worked, in the last second or less before the agent asked.
        pids: The processes that did something on the GPU since the agent asked before.
        instances: For a GPU in MIG mode, the numbers of the GPU instances on which processes compute.
        until_us: Time of the driver's newest record about these processes, in microseconds since the epoch; 0 if there
            is none. The agent asks for later records next time.
    """

    percent: int | None = None
    pids: frozenset[int] | None = None
    instances: frozenset[int] | None = None
    until_us: int = 0

    @property
    def works(self) -> bool | None:
        """Return whether the GPU did any work; None if that is not known."""
        if self.instances is not None:
            return None if self.instances else False
        if self.percent or self.pids:
            return True
        return None if self.percent is None or self.pids is None else False


UNKNOWN = GpuWork()
