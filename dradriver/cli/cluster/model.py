"""What the view shows: nodes, their GPUs, and who holds them. All text in it is safe to print."""

from __future__ import annotations

import enum

import msgspec

from dradriver.allocator.request import Choice
from dradriver.topology.groups import Groups
from dradriver.topology.machine import Gpu, Machine

_MOST_PODS = 3  # of one claim that are named on a line


class Hold(enum.Enum):
    """How a claim holds a GPU."""

    ALLOCATED = "allocated"  # by the scheduler
    PROMISED = "promised"  # by our controller, until the scheduler has allocated it
    ADMIN = "admin"  # adminAccess, for monitoring: takes the GPU from nobody


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and the pods that it is for.

    Attributes:
        namespace: Of claim and pods.
        claim: Name.
        pods: Names of the pods that may use it; of a promise, the pod that waits for it.
        hold: How it holds the GPU.
        share: The id of the share of the GPU that it has, empty for all of it.
        part: What part of the GPU it has, as pods are told, ``25%/20480Mi`` or ``1g.10gb@6``; empty for all of it.
    """

    namespace: str
    claim: str
    pods: tuple[str, ...]
    hold: Hold
    share: str = ""
    part: str = ""

    @property
    def who(self) -> str:
        """``namespace/pod``, or the claim where no pod uses it."""
        named = ", ".join(self.pods[:_MOST_PODS]) or f"{self.claim}, a claim without pod"
        more = len(self.pods) - _MOST_PODS
        return f"{self.namespace}/{named}" + (f" and {more} more" if more > 0 else "")

    @property
    def words(self) -> str:
        """How it holds the GPU and who it is, in words."""
        share = self.part or (f"share {self.share}" if self.share else "")
        marks = (["adminAccess"] if self.hold is Hold.ADMIN else []) + ([share] if share else [])
        promised = "promised to " if self.hold is Hold.PROMISED else ""
        return f"{promised}{self.who}" + (f" ({', '.join(marks)})" if marks else "")


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU.

    Attributes:
        gpu: The GPU.
        holders: Who holds it: nobody, one claim, or several where that is shared, promised or for monitoring.
        blocked: Why the scheduler gives it to nobody, empty where it does.
    """

    gpu: Gpu
    holders: tuple[Holder, ...] = ()
    blocked: str = ""

    @property
    def taken_by(self) -> tuple[Holder, ...]:
        """Who holds it for itself: monitoring takes nothing."""
        return tuple(holder for holder in self.holders if holder.hold is not Hold.ADMIN)

    @property
    def state(self) -> str:
        """``allocated``, ``promised``, ``blocked`` or ``free``."""
        if self.taken_by:
            return self.taken_by[0].hold.value
        return "blocked" if self.blocked else "free"


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node.

    Attributes:
        name: The node's, which is also its pool's.
        machine: Its machine.
        groups: The machine's groups.
        gpus: Its GPUs, by position in the machine.
        nvlink_set: The largest set of two or more GPUs that ``policy: nvlink`` would give a pod now; None where there
            is none, and on machines that are larger than the allocator places on.
    """

    name: str
    machine: Machine
    groups: Groups
    gpus: tuple[GpuView, ...]
    nvlink_set: Choice | None = None

    @property
    def free(self) -> list[int]:
        """The machine's own numbers of the free GPUs."""
        return [view.gpu.index for view in self.gpus if view.state == "free"]
