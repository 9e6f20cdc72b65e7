"""What the controller remembers of a waiting pod or gang between two times that it processes it.

``controller/steps/observe.py`` writes it. It contains only what the API does not have. A new leader has no memory, so
deadlines begin when it first processes the pod. All times are the loop's clock, in seconds.

A *tentative placement* is the node and GPUs that are chosen for a pod whose claim the scheduler has not allocated yet.
A *gang barrier device* in a pod's claim keeps the pod unbound until its whole gang can start.
"""

from __future__ import annotations

import msgspec

from dradriver.kube.backoff import wait_s
from dradriver.queue.backoffs import LONGEST_BACKOFF_S, LOST_S


class PodMemory(msgspec.Struct, frozen=True):
    """What the controller remembers of one pod. Each method returns the memory after an observation.

    Attributes:
        claim_uid: The uid of the claim with which the pod was last seen. Empty if there is none, if the controller
            revoked it, or while other pods must end for it.
        placed_at: When that claim was first seen.
        unschedulable_at: When the scheduler first reported that it finds no room for the pod; None if it does not.
        refused_before: The scheduler's message when the previous claim was revoked. None once the message differs, or
            the scheduler finds room.
        is_renewed: Whether this claim, or the previous one, was created again because the scheduler had overlooked that
            there is room.
        bound_at: When the pod was first seen bound without the devices of its claim; None if it is not.
        losses: How many claims of this pod another client has deleted.
        lost_until: Until when the pod backs off after the last of these deletions.
        barrier: For a claim with a gang barrier device: the claim's uid, whether the device is allocated, and since
            when both facts are known. Else None.
        leaving: For a claim with a gang barrier device that is being deleted: the claim's uid, and since when the
            deletion is known. Else None.
    """

    claim_uid: str = ""
    placed_at: float = 0.0
    unschedulable_at: float | None = None
    refused_before: str | None = None
    is_renewed: bool = False
    bound_at: float | None = None
    losses: int = 0
    lost_until: float = 0.0
    barrier: tuple[str, bool, float] | None = None
    leaving: tuple[str, float] | None = None

    def placed(self, claim_uid: str, refused: str | None, now: float) -> PodMemory:
        """Return the memory after the pod was seen with the claim ``claim_uid``.

        The scheduler must bind the pod in time.

        Args:
            claim_uid: The uid of the claim.
            refused: The scheduler's message that it finds no room for the pod; None if there is none.
            now: The time.
        """
        memory = self
        if self.claim_uid != claim_uid:
            memory = msgspec.structs.replace(memory, claim_uid=claim_uid, placed_at=now, unschedulable_at=None)
        if refused is None:
            if memory.unschedulable_at is None and memory.refused_before is None:
                return memory
            return msgspec.structs.replace(memory, unschedulable_at=None, refused_before=None)
        if memory.unschedulable_at is None:
            return msgspec.structs.replace(memory, unschedulable_at=now)
        # Another message than before speaks of this claim.
        return memory if refused == self.refused_before else msgspec.structs.replace(memory, refused_before=None)

    def has(self, claim_uid: str) -> PodMemory:
        """Return the memory after the pod was seen with a claim that has no deadline.

        Such a claim keeps no GPU from other pods, so the scheduler need not bind the pod in time.
        """
        return msgspec.structs.replace(self, claim_uid=claim_uid)

    def bound(self, now: float) -> PodMemory:
        """Return the memory after the pod was seen bound without its claim's GPUs."""
        return msgspec.structs.replace(self, bound_at=now) if self.bound_at is None else self

    def at_barrier(self, claim_uid: str, is_seated: bool, now: float) -> PodMemory:
        """Return the memory after the pod was seen with a gang barrier device.

        The device is in the pod's claim, and keeps the pod unbound until its gang can start.

        Args:
            claim_uid: The uid of the claim.
            is_seated: Whether the device is allocated. Only then the scheduler keeps the chosen node and GPUs for the
                pod.
            now: The time.
        """
        if self.barrier is None or self.barrier[:2] != (claim_uid, is_seated):
            return msgspec.structs.replace(self, claim_uid=claim_uid, barrier=(claim_uid, is_seated, now))
        return self if self.claim_uid == claim_uid else msgspec.structs.replace(self, claim_uid=claim_uid)

    def leaves(self, claim_uid: str, now: float) -> PodMemory:
        """Return the memory after the pod's claim with a gang barrier device was seen being deleted."""
        if self.leaving is None or self.leaving[0] != claim_uid:
            return msgspec.structs.replace(self, leaving=(claim_uid, now))
        return self

    def revoked(self, refused: str | None, *, renewed: bool = False) -> PodMemory:
        """Return the memory after the controller deleted the pod's claim.

        Args:
            refused: The scheduler's message that it finds no room for the pod; None if there is none.
            renewed: Whether the claim is created again because the scheduler had overlooked that there is room.
        """
        return msgspec.structs.replace(self, claim_uid="", refused_before=refused, is_renewed=renewed)

    def waits(self, refused: str | None) -> PodMemory:
        """Return the memory of a pod whose claim can be allocated only after other pods end.

        Meanwhile the scheduler need not bind the pod in time.

        Args:
            refused: The scheduler's message that it finds no room for the pod; None if there is none.
        """
        return msgspec.structs.replace(self, claim_uid="", refused_before=refused)

    def without_claim(self, now: float) -> PodMemory:
        """Return the memory after the pod was seen without a claim.

        If the memory has a claim, another client has deleted that claim and may do so again. So the pod backs off after
        the second and each later deletion.
        """
        if not self.claim_uid:
            return self
        losses = self.losses + 1
        pause_s = wait_s(losses, first_s=LOST_S, longest_s=LONGEST_BACKOFF_S) if losses > 1 else 0.0
        return msgspec.structs.replace(self, claim_uid="", losses=losses, lost_until=now + pause_s)

    def forgiven(self) -> PodMemory:
        """Return the memory without the present back-off, because the pod requests something else now.

        ``losses`` stays unchanged, so a later back-off is as long as it would have been.
        """
        return msgspec.structs.replace(self, is_renewed=False, lost_until=0.0)


class GangMemory(msgspec.Struct, frozen=True):
    """What the controller remembers of a gang that has not started.

    Attributes:
        pods: The number of its pods.
        gathered_at: Since when it has this number of pods.
        placed_at: When it was first seen with claims that the scheduler must bind in time; None while there are none.
    """

    pods: int = 0
    gathered_at: float = 0.0
    placed_at: float | None = None

    def gathered(self, pods: int, now: float) -> GangMemory:
        """Return the memory after the gang was seen with so many pods.

        ``gathered_at`` becomes ``now`` if this number has changed.
        """
        return self if self.pods == pods else msgspec.structs.replace(self, pods=pods, gathered_at=now)

    def placed(self, now: float) -> GangMemory:
        """Return the memory after the gang was seen with claims that have a deadline.

        The scheduler must bind the pods in time, unless other pods must end before the claims can be allocated.
        """
        return msgspec.structs.replace(self, placed_at=now) if self.placed_at is None else self

    def unplaced(self) -> GangMemory:
        """Return the memory of a gang that the scheduler need not bind in time.

        The gang has no claims, or other pods must end before its claims can be allocated.
        """
        return self if self.placed_at is None else msgspec.structs.replace(self, placed_at=None)
