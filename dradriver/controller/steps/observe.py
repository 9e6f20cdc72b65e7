"""What is so of a pod or a gang now. ``observe`` also updates what is remembered of it; ``step`` then decides, pure.

phase         record in the API                           goes on when                         else
unclaimed     a pod without a claim                       it has a place                       is told why
sharing       a claim that was made for another pod       that pod has it                      waits
foreign       a claim of somebody else under its name     somebody deletes one of them         waits
leaving       a claim that is being deleted               it is gone                           a barrier is freed
meddled       a gated pod, its claim used or allocated    somebody deletes the pod             waits
outdated      a gated pod, others had to end by now       -                                    revoked
blocked       a gated pod with a claim, gates of others   -                                    revoked
unread        the same, not all known that its claim says all is read                          revoked, at a deadline
gated         the same, all known                         its gate is removed                  revoked
tentative     no gate, a claim that is not allocated      the scheduler allocates it           revoked, at a deadline
preempting    the same, other pods have to end first      they have ended                      revoked, at a deadline
broken        the same, its GPUs are gone or taken        -                                    revoked
handed over   no gate, a claim for any GPUs               the scheduler allocates it           waits
barrier       a claim with a gang barrier, told to go     the pod is bound                     freed, at a deadline
allocated     a claim with its devices                    the pod is bound                     waits
bound         a node, and a claim with its devices        it is settled                        -
bypassed      a node, and no claim that is allocated      the reflectors show the claim        told, at a deadline
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
    """How far a pod is on its way to its GPUs; the module's table says what each means."""

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
    """A living pod that is placed by itself.

    Attributes:
        member: The pod.
        phase: How far it is.
        claim: The claim that it names; None if there is none.
        ending: The other pods that have to end for its claim; None if there are none.
        unread: What to tell its author while something is read on which its claim depends; None for nothing to tell.
    """

    member: Member
    phase: Phase
    claim: ClaimRecord | None
    ending: Ending | None = None
    unread: Reason | None = None


class GangState(msgspec.Struct, frozen=True):
    """A gang of which no pod is bound or was told to go.

    Attributes:
        workload: The gang: its living pods in the order of their ranks.
        size: How few pods it may start with, and how many it has; or why that is not known, None while it is read.
        done: Pods that ended well: they need no place.
        claims: The claims that members own, by the uid of the pod.
        lacking: The uids of members that no plan can have now, and what each lacks; None while that is read.
        blocked: Who keeps a member from having a claim of its own, for as long as they like; None if no one does.
        meddled: Why a member cannot go on although nothing blocks it; None if all can.
        broken: Why claims that are not allocated never will be, or should not, by the uid of the pod.
        ending: The other pods that have to end for its claims; None if there are none.
        is_asleep: Whether the scheduler has to be woken by the release of all its places.
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
        """How many claims the plan of the observed gang has; 0 without a plan."""
        sizes = (claim.planned.size for claim in self.claims.values() if claim.planned is not None)
        return max(sizes, default=0)

    @property
    def lacks_members(self) -> bool:
        """Whether more members of the observed gang lack something than its plan can do without."""
        return len(self.workload.members) - len(self.lacking) < self.planned

    @property
    def is_hindered(self) -> bool:
        """Whether members of the observed gang cannot go on, so that no deadline of the scheduler runs."""
        is_blocked = self.blocked is not None and self.lacks_members
        return is_blocked or self.meddled is not None or self.is_leaving


def observe(member: Member, picture: Picture, now: float, *, wall: float | None = None) -> PodState:
    """Observe how far a pod is, and remember since when.

    Args:
        member: A living pod that is placed by itself: alone, or in a gang that has started.
        picture: The cluster cache.
        now: The loop's clock.
        wall: The time that claims are written by, seconds since the epoch; None for this process's.
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
    """Observe how far a gang is that has not started, and remember since when.

    Args:
        workload: The gang: its living pods in the order of their ranks.
        picture: The cluster cache.
        size: How few pods it may start with, and how many it has; or why that is not known, None while it is read.
            Claims that exist keep the size that is written in them.
        now: The loop's clock.
        done: Pods that ended well.
        wall: The time that claims are written by, seconds since the epoch; None for this process's.
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
    """Return what is remembered of a pod once it was seen in a state."""
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
    """Return what is remembered of a claim that is deleted: since when the scheduler may let go of its barrier."""
    return memory.leaves(claim.uid, now) if claim.seat is not None and OFF in claim.seat.told else memory


def _pod_state(member: Member, picture: Picture, now: float, wall: float) -> PodState:
    """Return the phase of a pod, with the claim that it names.

    The order matters: each check rules out a phase for the later ones.
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
    """Return how far a gated pod with a claim is: a crash, or a conflict before its gate was removed, left both."""
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

    Of several members that are blocked or meddled with, the first one gives the reason.
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
            text = f"claim {name} of {shown(pod)} was given devices while it was gated; delete that pod"
            meddled = meddled or Reason(Cause.POD, text)
    longest_s = longest(lasts_s(member.pod) for member in workload.members)
    ending = ending_for(claims.values(), picture, now, wall, longest_s) if claims else None
    is_asleep = picture.gangs.is_asleep(workload.key)
    return GangState(workload, size, done, claims, lacking, blocked, meddled, broken, ending, is_asleep)


def _blocked_by(member: Member, claim: ClaimRecord | None) -> Reason | None:
    """Return who keeps a member from having a claim of its own, for as long as they like; None if no one does.

    Args:
        member: A member without a claim of its own.
        claim: The claim in its place, which belongs to somebody else; None if there is none.
    """
    if claim is not None:
        text = f"claim {claim.metadata.name} belongs to somebody else; delete {shown(member.pod)}"
        return Reason(Cause.POD, text)
    gates = other_gates(member.pod) if member.pod.gated else []
    return Reason(Cause.GATE, f"{shown(member.pod)} {other_gate(gates)}") if gates else None


def _lacks(member: Member, picture: Picture) -> tuple[bool, Reason | None]:
    """Return whether a member lacks something without which no plan can have it, and what; None while that is read."""
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
    """Return whether a claim is a tentative placement that the scheduler has not allocated."""
    return claim.pin is not None and claim.devices is None and claim.owned_by(pod.metadata.uid)


def _is_for(pod: Pod, claim: ClaimRecord, picture: Picture) -> bool:
    """Return whether a claim that pods share is being placed with this pod."""
    if claim.set is None or claim.deleting or claim.devices is not None:
        return False
    heir = picture.claim_users.heir(claim)
    return heir is not None and heir.metadata.uid == pod.metadata.uid
