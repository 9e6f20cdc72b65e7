"""Observes the state of a pod or a gang, and updates what is remembered of it. ``step`` then decides, pure.

phase         record in the API                           next phase when                      else
unclaimed     a pod without a claim                       it has a place                       is told why
sharing       a claim that was made for another pod       that pod has it                      waits
foreign       another owner's claim with its name         a user deletes one of them           waits
leaving       a claim that is being deleted               it is gone                           a barrier is freed
meddled       a gated pod, its claim used or allocated    a user deletes the pod               waits
outdated      a gated pod, preemption deadline passed     -                                    revoked
blocked       a gated pod with a claim, other gates       -                                    revoked
unread        a gated pod with a claim, data not read     all data are read                    revoked, at a deadline
gated         the same, all data read                     its gate is removed                  revoked
tentative     no gate, a claim that is not allocated      the scheduler allocates it           revoked, at a deadline
preempting    the same, other pods have to end first      they have ended                      revoked, at a deadline
broken        the same, its GPUs are gone or taken        -                                    revoked
handed over   no gate, a claim for any GPUs               the scheduler allocates it           waits
barrier       a claim with a gang barrier, told to go     the pod is bound                     freed, at a deadline
allocated     a claim with its devices                    the pod is bound                     waits
bound         a node, and a claim with its devices        its annotations are right            -
bypassed      a node, and no allocated claim              the reflectors show the claim        told, at a deadline

A *gang barrier device* in a pod's claim keeps the pod unbound until its whole gang can start. The scheduler is *told to
go* by a condition on the claim: then the pod may be bound. A *tentative* claim names GPUs that the scheduler has not
allocated yet. To *revoke* it is to delete it.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.base.gang_barrier_device import GO, OFF
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import is_set
from dradriver.api.gangs.gang_annotations import Size
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.pod_demands import lasts_s, longest
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.ending import Ending, ending_for
from dradriver.controller.steps.rules import broken_by, is_seated, not_known, other_gate, other_gates, shown
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.queue.memory import PodMemory
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.reason import Cause, Reason


class Phase(enum.Enum):
    """The phase of a pod on its way to its GPUs; see the module's table."""

    UNCLAIMED = enum.auto()
    SHARING = enum.auto()
    FOREIGN = enum.auto()
    LEAVING = enum.auto()
    MEDDLED = enum.auto()
    OUTDATED = enum.auto()
    BLOCKED = enum.auto()
    UNREAD = enum.auto()
    GATED = enum.auto()
    TENTATIVE = enum.auto()
    PREEMPTING = enum.auto()
    BROKEN = enum.auto()
    HANDED_OVER = enum.auto()
    BARRIER = enum.auto()
    ALLOCATED = enum.auto()
    BOUND = enum.auto()
    BYPASSED = enum.auto()


class PodState(msgspec.Struct, frozen=True):
    """The state of a living pod that is placed by itself.

    Attributes:
        member: The pod.
        phase: The phase of the pod.
        claim: The claim that the pod names; None if it does not exist.
        ending: The other pods that have to end before the claim gets its GPUs; None if there are none.
        unread: What to tell the pod's author while data about its claim are being read; None for nothing to tell.
    """

    member: Member
    phase: Phase
    claim: ClaimRecord | None
    ending: Ending | None = None
    unread: Reason | None = None


class GangState(msgspec.Struct, frozen=True):
    """The state of a gang without bound pods that was not told to start.

    Attributes:
        workload: The gang: its living pods in the order of their ranks.
        size: The least number of pods to start with, and the full number; a Reason if unknown; None while it is read.
        done: How many pods of the gang's size need no place, for example because they succeeded
            (``gang_sizes.done_of``).
        claims: The claims that members own, by the uid of the pod.
        lacking: The members that no plan can include now, by uid, each with what it lacks. The value is None while that
            is being read.
        blocked: Why a member cannot have a claim of its own: a gate of another program, or another owner's claim. None
            if there is no such member.
        meddled: Why a member's claim must not be used: it was allocated while the pod had its gate. None if there is no
            such member.
        broken: By the uid of the pod, why its unallocated claim cannot or should not be allocated.
        ending: The other pods that have to end before the gang's claims get their GPUs; None if there are none.
        is_asleep: Whether all its places must be released, because only this makes the scheduler try its pods again.
    """

    workload: PendingWorkload
    size: Size | Reason | None
    done: int
    claims: Mapping[str, ClaimRecord]
    lacking: Mapping[str, Reason | None]
    blocked: Reason | None
    meddled: Reason | None
    broken: Mapping[str, WithdrawReason]
    ending: Ending | None
    is_asleep: bool

    @property
    def is_leaving(self) -> bool:
        """Whether a claim of the observed gang is being deleted."""
        return any(claim.deleting for claim in self.claims.values())

    @property
    def planned(self) -> int:
        """The number of claims that the observed gang's plan has; 0 without a plan."""
        sizes = (claim.planned.size for claim in self.claims.values() if claim.planned is not None)
        return max(sizes, default=0)

    @property
    def lacks_members(self) -> bool:
        """Whether fewer members of the observed gang can be placed than its plan needs."""
        return len(self.workload.members) - len(self.lacking) < self.planned

    @property
    def is_hindered(self) -> bool:
        """Whether the observed gang cannot go on because of its members or claims.

        A member that it needs is blocked, a claim must not be used, or a claim is being deleted. While this is so, only
        the deadline of the gang's claims counts, not how long the scheduler refuses a pod.
        """
        is_blocked = self.blocked is not None and self.lacks_members
        return is_blocked or self.meddled is not None or self.is_leaving


def observe(member: Member, picture: Picture, now: float, *, wall: float | None = None) -> PodState:
    """Return the state of a pod; note in ``member.memory`` since when it lasts.

    Args:
        member: A living pod that is placed by itself: alone, or in a gang that has started.
        picture: The cluster cache.
        now: The time by the event loop's clock.
        wall: The time in seconds since the epoch, in which deadlines on claims are written; None for this process's
            clock.
    """
    state = _pod_state(member, picture, now, time.time() if wall is None else wall)
    member.memory = _remembered(member.memory, state, now)
    return state


def observe_gang(
    workload: PendingWorkload,
    picture: Picture,
    size: Size | Reason | None,
    now: float,
    *,
    done: int,
    wall: float | None = None,
) -> GangState:
    """Return the state of an unstarted gang; note in its memory since when it lasts.

    Args:
        workload: The gang: its living pods in the order of their ranks.
        picture: The cluster cache.
        size: The least number of pods to start with, and the full number; a Reason if unknown; None while it is read.
            Claims that exist keep the size that is written in them.
        now: The time by the event loop's clock.
        done: How many pods of the gang's size need no place (``gang_sizes.done_of``).
        wall: The time in seconds since the epoch, in which deadlines on claims are written; None for this process's
            clock.
    """
    state = _gang_state(workload, picture, size, now, done=done, wall=time.time() if wall is None else wall)
    # 1. The gang's memory: since when it has so many pods (``gathered``), and since when it has claims (``placed``).
    #    While members cannot go on, the deadline of the claims runs, even if other pods have to end for them.
    is_hindered = state.is_hindered
    waits_for_others = state.ending is not None and not is_hindered
    memory = workload.memory.gathered(len(workload.members), now)
    workload.memory = memory.placed(now) if state.claims and not waits_for_others else memory.unplaced()
    if not state.claims:
        picture.gangs.woken(workload.key)  # all its places are released, which made the scheduler try other pods

    # 2. The memory of each member: since when the scheduler has its claim, and since when it finds no room. It has no
    #    deadline while other pods must end (``waits``).
    for member in workload.members:
        claim = state.claims.get(member.uid)
        if waits_for_others:
            member.memory = member.memory.waits(member.pod.refused)
        if claim is None:
            continue
        is_scheduled = not member.pod.gated and not is_seated(member, claim)  # the scheduler has it and gave it no seat
        if claim.deleting:
            member.memory = _remembered_leaving(member.memory, claim, now)
        elif is_scheduled and not (waits_for_others or is_hindered):
            member.memory = member.memory.placed(claim.uid, member.pod.refused, now)
    return state


def _remembered(memory: PodMemory, state: PodState, now: float) -> PodMemory:
    """Return ``memory``, what is remembered of a pod, updated by its observed ``state``.

    ``now`` is by the event loop's clock.
    """
    claim, pod = state.claim, state.member.pod
    if claim is None:
        return memory.bound(now) if state.phase is Phase.BYPASSED else memory.without_claim(now)
    match state.phase:
        case Phase.BYPASSED:
            return memory.bound(now)
        case Phase.LEAVING:
            return _remembered_leaving(memory, claim, now)
        case Phase.UNREAD | Phase.TENTATIVE:
            return memory.placed(claim.uid, pod.refused, now)
        case Phase.PREEMPTING:
            return memory.waits(pod.refused)
        case Phase.HANDED_OVER:
            return memory.has(claim.uid)
        case Phase.BARRIER:
            is_seated_pod = pod.metadata.uid in claim.users
            # The scheduler's time to bind a seated pod begins when the pod is told to go.
            if is_seated_pod and claim.seat is not None and GO not in claim.seat.told:
                return memory.has(claim.uid)
            return memory.at_barrier(claim.uid, is_seated_pod, now)
        case _:
            return memory


def _remembered_leaving(memory: PodMemory, claim: ClaimRecord, now: float) -> PodMemory:
    """Return what is remembered of a pod whose claim is being deleted.

    The claim may have a gang barrier device, which keeps the pod unbound. Then ``memory`` gets the time at which the
    scheduler was told to release it. ``now`` is by the event loop's clock.
    """
    return memory.leaves(claim.uid, now) if claim.seat is not None and OFF in claim.seat.told else memory


def _pod_state(member: Member, picture: Picture, now: float, wall: float) -> PodState:
    """Return the state of a pod, with its phase and the claim that it names.

    The order of the checks matters: each check excludes a phase for the later checks. ``now`` is by the event loop's
    clock, ``wall`` in seconds since the epoch.
    """
    pod, claim = member.pod, picture.claim_of(member.pod)
    if pod.spec.node_name:
        is_bypassed = claim is None or _is_unused(pod, claim)
        return PodState(member, Phase.BYPASSED if is_bypassed else Phase.BOUND, claim)
    if claim is None:
        return PodState(member, Phase.UNCLAIMED, claim)
    if is_set(claim.key) and not _is_for(pod, claim, picture):
        return PodState(member, Phase.SHARING, claim)
    if not claim.owned_by(pod.metadata.uid):
        return PodState(member, Phase.FOREIGN, claim)
    if claim.deleting:
        return PodState(member, Phase.LEAVING, claim)
    if pod.gated:
        return _gated_state(member, claim, picture, wall)
    if claim.seat is not None:
        return PodState(member, Phase.BARRIER, claim)
    if claim.devices is not None:
        return PodState(member, Phase.ALLOCATED, claim)
    if claim.handed_over:
        return PodState(member, Phase.HANDED_OVER, claim)
    if broken_by(claim, picture) is not None:
        return PodState(member, Phase.BROKEN, claim)
    ending = ending_for((claim,), picture, now, wall, lasts_s(pod))
    return PodState(member, Phase.TENTATIVE if ending is None else Phase.PREEMPTING, claim, ending)


def _gated_state(member: Member, claim: ClaimRecord, picture: Picture, wall: float) -> PodState:
    """Return the state of a gated pod that has a claim.

    The controller creates the claim and then removes the gate. If it crashes or meets a conflict in between, the pod
    has both. ``wall`` is the time in seconds since the epoch.
    """
    if claim.devices is not None or any(uid != member.uid for uid in claim.users):
        return PodState(member, Phase.MEDDLED, claim)
    if claim.preempts is not None and wall >= claim.preempts.until:
        return PodState(member, Phase.OUTDATED, claim)
    if other_gates(member.pod):
        return PodState(member, Phase.BLOCKED, claim)
    if picture.templates.unread_of(member.pod) is not None:
        return PodState(member, Phase.UNREAD, claim)
    if claim.pin is None:
        return PodState(member, Phase.GATED, claim)
    if (unread := not_known([(member, claim)], picture)) is not None:
        return PodState(member, Phase.UNREAD, claim, unread=unread)
    return PodState(member, Phase.GATED, claim)


def _gang_state(
    workload: PendingWorkload, picture: Picture, size: Size | Reason | None, now: float, *, done: int, wall: float
) -> GangState:
    """Return the state of a gang that has not started.

    If several members are blocked or meddled with, the state has the reason of the first one. ``size`` has the least
    and the full number of pods, ``done`` is how many of them need no place. ``now`` is by the event loop's clock,
    ``wall`` in seconds since the epoch.
    """
    claims: dict[str, ClaimRecord] = {}
    lacking: dict[str, Reason | None] = {}
    broken: dict[str, WithdrawReason] = {}
    blocked: Reason | None = None
    meddled: Reason | None = None
    for member in workload.members:
        pod, claim = member.pod, picture.claim_of(member.pod)
        if claim is None or not claim.owned_by(member.uid):
            blocked_reason = _blocked_by(member, claim)
            blocked = blocked or blocked_reason
            is_lacking, lack = _lacks(member, picture) if blocked_reason is None else (True, blocked_reason)
            if is_lacking:
                lacking[member.uid] = lack
            continue
        claims[member.uid] = claim
        if (cause := broken_by(claim, picture)) is not None:
            broken[member.uid] = cause
        if claim.devices is not None and pod.gated:
            # No scheduler gives devices to a gated pod: this state of the pod is an old one, or somebody meddled.
            name = claim.metadata.name
            text = f"Claim {name} was allocated while {shown(pod)} had its scheduling gate. Delete that pod."
            meddled = meddled or Reason(Cause.POD, text)
    longest_s = longest(lasts_s(member.pod) for member in workload.members)
    ending = ending_for(claims.values(), picture, now, wall, longest_s) if claims else None
    is_asleep = picture.gangs.is_asleep(workload.key)
    return GangState(workload, size, done, claims, lacking, blocked, meddled, broken, ending, is_asleep)


def _blocked_by(member: Member, claim: ClaimRecord | None) -> Reason | None:
    """Return why a member cannot have a claim of its own; None if it can.

    The cause is a gate of another program, or another owner's claim. The controller cannot end this state.

    Args:
        member: A member without a claim of its own.
        claim: The claim with the member's name that has another owner; None if there is none.
    """
    if claim is not None:
        text = f"Claim {claim.metadata.name} does not belong to this pod. Delete {shown(member.pod)}."
        return Reason(Cause.POD, text)
    gates = other_gates(member.pod) if member.pod.gated else []
    return other_gate(member.pod, gates) if gates else None


def _lacks(member: Member, picture: Picture) -> tuple[bool, Reason | None]:
    """Return whether a member lacks what a plan needs, and the reason to show.

    For example, it lacks its claim template. The reason is None if nothing is lacking, and while the object is being
    read.
    """
    pod = member.pod
    if pod.gated and (why := picture.lacking_of(pod)) is not None:
        return True, why
    if picture.templates.unread_of(pod) is not None or (pod.gated and picture.volumes.unread_of(pod)):
        return True, None
    try:
        _ = member.wish
    except WordError as error:
        return True, error.why
    return False, None


def _is_unused(pod: Pod, claim: ClaimRecord) -> bool:
    """Return whether a claim has GPUs chosen for this pod, and the scheduler allocated none."""
    return claim.pin is not None and claim.devices is None and claim.owned_by(pod.metadata.uid)


def _is_for(pod: Pod, claim: ClaimRecord, picture: Picture) -> bool:
    """Return whether a shared claim is being placed through this pod.

    One of the pods that share the claim gets a place for it first. The others wait until the claim is allocated.
    """
    if claim.set is None or claim.deleting or claim.devices is not None:
        return False
    heir = picture.claim_users.heir(claim)
    return heir is not None and heir.metadata.uid == pod.metadata.uid
