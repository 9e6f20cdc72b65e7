"""Whether a GPU works: what is known of one look at it."""

from __future__ import annotations

import msgspec


class GpuWork(msgspec.Struct, frozen=True):
    """What a GPU did since it was last asked. What is not known is None, never nothing.

    Attributes:
        percent: In how much of the last moment it was at work.
        pids: The processes that did something on it since then.
        instances: Of a GPU in MIG mode the numbers of the GPU instances that processes compute on.
        until_us: The newest that is known of these processes, in microseconds since the epoch; 0 for nothing.
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
