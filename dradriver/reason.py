"""Why a pod waits, as a value: a cause for programs, and the text that people read.

A reason is made where its figures are known, with its cause. Nothing reads a cause back from a text.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """Why a pod waits. The values are labels of the metric of waiting pods."""

    GPUS = "gpus"  # no set that it may use is free
    NEVER = "never"  # the cluster has no such set, even if it is empty
    NODES = "nodes"  # no node with GPUs can run it
    RESERVED = "reserved"  # what is free is kept for others, by a reservation, a partition or exclusiveTo
    CAP = "cap"  # the cap of its tenant, or the quota of its namespace
    GANG = "gang"  # other pods of its gang are missing, or have no place
    ENDING = "ending"  # other pods end for it
    SCHEDULER = "scheduler"  # the scheduler has not bound it
    GATE = "gate"  # another controller holds it
    STORAGE = "storage"  # a volume
    SERVER = "server"  # the API server, or a webhook of others
    POD = "pod"  # its own annotations, or a change of its claim by others


class Reason(msgspec.Struct, frozen=True):
    """Why a pod waits.

    Attributes:
        cause: For programs.
        text: For people.
        stable: The text without figures that change all the time; empty if it has none of these.
    """

    cause: Cause
    text: str
    stable: str = ""

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)

    def add(self, text: str, cause: Cause | None = None) -> Reason:
        """Return the same reason with a further sentence; it has another cause if that says more."""
        if not text:
            return Reason(cause or self.cause, self.text, self.stable)
        stable = f"{self.stable}; {text}" if self.stable else ""
        return Reason(cause or self.cause, f"{self.text}; {text}", stable)

    @property
    def without_figures(self) -> Reason:
        """Return the same reason without figures that change all the time."""
        return Reason(self.cause, self.stable) if self.stable else self
