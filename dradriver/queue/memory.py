"""What the controller remembers of a waiting pod or gang between two looks. ``controller/steps/observe.py`` writes it.

The API has everything else. A leader that begins knows nothing of this: its deadlines begin when it first looks.
All times are the loop's clock, in seconds.
"""

from __future__ import annotations

import msgspec

from dradriver.kube.backoff import wait_s
from dradriver.queue.backoffs import LONGEST_BACKOFF_S, LOST_S


class PodMemory(msgspec.Struct, frozen=True):
    """What is remembered of one pod. Each method returns the memory as it is after something was seen.

    Attributes:
        claim_uid: The claim of its tentative placement; empty if there is none, or the controller revoked it.
        placed_at: When that claim was first seen.
        unschedulable_at: When the scheduler was first seen to find no room for it; None while it does not say so.
        refused_before: What the scheduler said when the claim before was revoked, as long as it says nothing else.
        is_renewed: Whether the claim, or the one before, was made again because the scheduler had overlooked its room.
        bound_at: When the pod was first seen to be bound without what its claim should hold; None while it is not.
        losses: How many of its claims somebody else deleted.
        lost_until: Until when the pod waits after such a loss.
        barrier: Its claim with a gang barrier, whether it is seated, and since when both are so.
        leaving: Its claim with a gang barrier that is being deleted, and since when that is known.
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
        """Return the memory of the pod with its claim, and what the scheduler says; None while it finds room."""
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
        """Return the memory of the pod with a claim that keeps no GPU from anybody, so that no deadline runs."""
        return msgspec.structs.replace(self, claim_uid=claim_uid)

    def bound(self, now: float) -> PodMemory:
        """Return the memory of the pod, which is bound without its GPUs."""
        return msgspec.structs.replace(self, bound_at=now) if self.bound_at is None else self

    def at_barrier(self, claim_uid: str, is_seated: bool, now: float) -> PodMemory:
        """Return the memory of the pod, with the note whether the seat of its claim keeps a place for it, too."""
        if self.barrier is None or self.barrier[:2] != (claim_uid, is_seated):
            return msgspec.structs.replace(self, claim_uid=claim_uid, barrier=(claim_uid, is_seated, now))
        return self if self.claim_uid == claim_uid else msgspec.structs.replace(self, claim_uid=claim_uid)

    def leaves(self, claim_uid: str, now: float) -> PodMemory:
        """Return the memory of the pod, whose claim with a gang barrier is being deleted."""
        if self.leaving is None or self.leaving[0] != claim_uid:
            return msgspec.structs.replace(self, leaving=(claim_uid, now))
        return self

    def revoked(self, refused: str | None, *, renewed: bool = False) -> PodMemory:
        """Return the memory of the pod, whose claim the controller deleted, with what the scheduler said."""
        return msgspec.structs.replace(self, claim_uid="", refused_before=refused, is_renewed=renewed)

    def waits(self, refused: str | None) -> PodMemory:
        """Return the memory of the pod, whose claim the scheduler can allocate once other pods have ended."""
        return msgspec.structs.replace(self, claim_uid="", refused_before=refused)

    def without_claim(self, now: float) -> PodMemory:
        """Return the memory of the pod, which has no claim. Whoever else deleted the claim may go on doing so."""
        if not self.claim_uid:
            return self
        losses = self.losses + 1
        pause_s = wait_s(losses, first_s=LOST_S, longest_s=LONGEST_BACKOFF_S) if losses > 1 else 0.0
        return msgspec.structs.replace(self, claim_uid="", losses=losses, lost_until=now + pause_s)

    def forgiven(self) -> PodMemory:
        """Return the memory of the pod without what made it wait: it requests something else now."""
        return msgspec.structs.replace(self, is_renewed=False, lost_until=0.0)


class GangMemory(msgspec.Struct, frozen=True):
    """What is remembered of a gang that has not started.

    Attributes:
        pods: How many pods it has.
        gathered_at: Since when it has that many.
        placed_at: When it was first seen with claims whose deadline runs; None while there are none.
    """

    pods: int = 0
    gathered_at: float = 0.0
    placed_at: float | None = None

    def gathered(self, pods: int, now: float) -> GangMemory:
        """Return the memory of the gang, with the number of its pods, and since when it has so many."""
        return self if self.pods == pods else msgspec.structs.replace(self, pods=pods, gathered_at=now)

    def placed(self, now: float) -> GangMemory:
        """Return the memory of the gang, which has claims for which nobody else has to end."""
        return msgspec.structs.replace(self, placed_at=now) if self.placed_at is None else self

    def unplaced(self) -> GangMemory:
        """Return the memory of the gang, for which no deadline runs: it has no claims, or other pods have to end."""
        return self if self.placed_at is None else msgspec.structs.replace(self, placed_at=None)
