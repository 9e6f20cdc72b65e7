"""What has to be done for a gang that has not started: from the states of its pods and claims to a step. Pure.

state       record in the API                              goes on when                    else
gathering   gated pods that say that they belong together  as many as its size             they are told how many
waiting     the same                                       a plan has places for all       they are told why
planned     claims of one plan                             all are there, none has a rival given back
lifted      no gate, affinity to the plan's nodes          every member has its seat       given back, at a deadline
seated      claims allocated and reserved, pods not bound  all are                         the same
go          a condition on all claims                      one was told: it has started    ``gang_running``
given back  claims deleted, seats told that they are off   they are gone: planned anew     waits within its nodes

Whoever kills the controller at any moment leaves one of these, and the next leader goes on from it. Where seats do not
keep pods from being bound (``Picture.barrier``), it has started once the first of them is bound.

All deadlines of such a gang are checked in ``gang_step``, in ``_overdue`` and where earlier claims go. Nothing returns
before it: neither a size that is not known, nor what a pod lacks or what of it is not read yet. Who calls it only keeps
a pause after a failed write. ``next_step`` does the same for single pods.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.base.gang_barrier_device import GO
from dradriver.api.base.pods import Pod
from dradriver.api.gangs.gang_annotations import Size
from dradriver.api.gangs.gang_owners import Rank
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.nodes.pod_demands import lasts_s, longest
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import nic_places
from dradriver.controller.steps import next_step
from dradriver.controller.steps.ending import Ending, ending_for
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.queue.units import Member, Unit
from dradriver.reason import Cause, Reason

MEMBER_S: Final = 0.1  # longer that a gang's promise may last for each of its pods: a scheduler seats 20 a second
LONGEST_S: Final = 300.0  # half of what kube-scheduler's bindingTimeout is, unless an administrator sets it
GATHER_S: Final = 2.0  # that a gang of a range of sizes waits for more pods after the last that came
LEAVING: Final = Reason(Cause.POD, "waits until its earlier claims are gone")


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be done before a time or an event.

    Attributes:
        until: The time, by the loop's clock; None for an event.
        reason: What to tell the pods' authors; None to leave what was told.
    """

    until: float | None = None
    reason: Reason | None = None


class Plan(msgspec.Struct, frozen=True):
    """Members want places, beside those who have theirs: all of a gang that begins, or those that came since.

    Attributes:
        members: Which.
        least: With how few a gang may begin where not all have places.
        until: When what the others have is taken back, by the loop's clock, if there is no place until then.
    """

    members: tuple[Member, ...]
    least: int
    until: float | None = None


class Lift(msgspec.Struct, frozen=True):
    """Members have their claims: if these are right, let the scheduler have their pods, else give them back."""

    members: tuple[Member, ...]


class Go(msgspec.Struct, frozen=True):
    """All members have their seats: tell them to go."""

    claims: tuple[ClaimRecord, ...]


class GiveBack(msgspec.Struct, frozen=True):
    """Claims have to go, those of seated members with the condition that frees them.

    Attributes:
        claims: Which.
        cause: Why.
        reason: What to tell the pods' authors; None if another plan follows at once.
        refused: Members of which the scheduler says that it finds no room for them.
    """

    claims: tuple[ClaimRecord, ...]
    cause: WithdrawReason
    reason: Reason | None = None
    refused: tuple[Member, ...] = ()


Step = Wait | Plan | Lift | Go | GiveBack | Ending


def gang_step(
    unit: Unit,
    picture: Picture,
    size: Size | Reason | None,
    now: float,
    *,
    done: int,
    promise_s: float,
    unschedulable_s: float,
) -> Step:
    """Return what has to be done for a gang of which no pod is bound or was told to go.

    Args:
        unit: The gang: its living pods in the order of their ranks.
        picture: The cluster.
        size: How few pods it may start with, and how many it has; or why that is not known, None while it is read.
            Claims that are there go on by the number that they say.
        now: The loop's clock.
        done: Pods that ended well: they need no place.
        promise_s: How long its claims may wait for the scheduler, whatever its size.
        unschedulable_s: How long once the scheduler says of one that it finds no room.
    """
    claims: dict[str, ClaimRecord] = {}
    lacking: dict[str, Reason | None] = {}
    blocked: Reason | None = None
    old: Reason | None = None
    for member in unit.members:
        pod, claim = member.pod, picture.claim_of(member.pod)
        if claim is None or not claim.owned_by(member.uid):
            why = _blocked(member, claim)
            blocked = blocked or why
            is_lacking, lacks = _lacks(member, picture) if why is None else (True, why)
            if is_lacking:
                lacking[member.uid] = lacks
            continue
        claims[member.uid] = claim
        if claim.devices is not None and pod.gated:
            # No scheduler gives devices to a gated pod: this picture of the pod is an old one, or somebody meddled.
            name = claim.metadata.name
            text = f"claim {name} of {_pod(pod)} was given devices while it was gated; delete that pod"
            old = old or Reason(Cause.POD, text)
    out = [member for member in unit.members if (claim := claims.get(member.uid)) and not _inside(member, claim)]
    if not claims:
        unit.promised_at = None
    leaving = _leaving(unit, claims, now)
    if isinstance(leaving, GiveBack):
        return leaving
    if not claims:
        return _gathering(unit, size, lacking, now, done=done)
    if len(unit.members) - len(lacking) >= _wanted(claims):
        blocked = None  # the others suffice
    if not (blocked or old or leaving):
        return _promised(
            unit, picture, claims, lacking, size, now, done=done, promise_s=promise_s, unschedulable_s=unschedulable_s
        )
    # What the others have is kept for no part of a gang for long.
    kept = tuple(claim for claim in _free(claims) if not claim.deleting)
    if kept and blocked:
        return GiveBack(kept, WithdrawReason.BLOCKED, blocked)
    if kept and not out:
        return GiveBack(kept, WithdrawReason.OUTDATED)
    reason = blocked or old or LEAVING
    times = [_until(unit, now, promise_s)] if kept else []
    if kept and times[0] <= now:
        return GiveBack(kept, WithdrawReason.OVERDUE, reason)
    if leaving is not None and leaving.until is not None:
        times.append(leaving.until)
    return Wait(until=min(times, default=None), reason=reason)


def _blocked(member: Member, claim: ClaimRecord | None) -> Reason | None:
    """Return who keeps a member from having a claim of its own, for as long as they like; None if no one does.

    Args:
        member: A member without a claim of its own.
        claim: The claim in its place, which belongs to somebody else; None if there is none.
    """
    if claim is not None:
        text = f"claim {claim.metadata.name} belongs to somebody else; delete {_pod(member.pod)}"
        return Reason(Cause.POD, text)
    others = next_step.other_gates(member.pod) if member.pod.gated else []
    return Reason(Cause.GATE, f"{_pod(member.pod)} {next_step.other_gate(others)}") if others else None


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


def _inside(member: Member, claim: ClaimRecord) -> bool:
    """Return whether no scheduler has seen a pod yet."""
    return member.pod.gated and claim.devices is None


def _leaving(unit: Unit, claims: Mapping[str, ClaimRecord], now: float) -> Wait | GiveBack | None:
    """Return what is done while earlier claims go: of seated members the scheduler must be told to let go of them."""
    leaving = [(member, claim) for member in unit.members if (claim := claims.get(member.uid)) and claim.deleting]
    if not leaving:
        return None
    times = [(claim, until) for one, claim in leaving if (until := next_step.stuck(one, claim, now)) is not None]
    if kept := tuple(claim for claim, until in times if until <= now):
        return GiveBack(kept, WithdrawReason.OUTDATED)
    return Wait(until=min((until for _, until in times), default=None))


def _gathering(
    unit: Unit, size: Size | Reason | None, lacking: Mapping[str, Reason | None], now: float, *, done: int
) -> Step:
    """Return what is done for a gang without claims; members that lack something are left out if others suffice."""
    if not isinstance(size, tuple):
        return Wait(reason=size)
    least, most = (max(1, number - done) for number in size)
    ready = tuple(member for member in unit.members if member.uid not in lacking)
    if len(ready) < least:
        return Wait(reason=_too_few(len(ready), least, lacking, beside=done))
    if len(ready) < most and (until := unit.gathered_at(now) + GATHER_S) > now:
        return Wait(until=until)
    return Plan(ready[:most], least)


def _too_few(ready: int, wanted: int, lacking: Mapping[str, Reason | None], *, beside: int = 0) -> Reason | None:
    """Return why a gang's pods are too few, and None while what one lacks is being read."""
    if (why := next(filter(None, lacking.values()), None)) is not None:
        return why
    if ready + len(lacking) >= wanted:
        return None
    others = f", beside {beside} that need no GPUs" if beside else ""
    return Reason(Cause.GANG, f"{ready + len(lacking)} of {wanted} pods of its gang are there{others}")


def _promised(
    unit: Unit,
    picture: Picture,
    claims: Mapping[str, ClaimRecord],
    lacking: Mapping[str, Reason | None],
    size: Size | Reason | None,
    now: float,
    *,
    done: int,
    promise_s: float,
    unschedulable_s: float,
) -> Step:
    """Return what is done for a gang some of whose members have claims."""
    # When the claims were made the size was known, and they say how many there are of the plan.
    least = max(1, size[0] - done) if isinstance(size, tuple) else 1
    every = tuple(claims.values())
    have = [member for member in unit.members if member.uid in claims]
    lifted = [member for member in unit.members if not member.pod.gated]
    plans = {None if claim.planned is None else claim.planned.plan for claim in every}
    free = _free(claims)
    if len(plans) > 1 or None in plans:
        return GiveBack(free, WithdrawReason.OUTDATED) if free else Wait()
    if broken := [(claim, cause) for claim in every if (cause := _broken(claim, picture)) is not None]:
        # Until a pod was lifted, another plan of all is better than one around what is left of this.
        taken = tuple(claim for claim, _ in broken) if lifted else every
        return GiveBack(taken, broken[0][1])
    wanted = _wanted(claims)
    missing = [member for member in unit.members if member.uid not in claims and member.uid not in lacking]
    if (len(claims) < wanted or wanted < least) and not lifted:
        # Its writer was killed between two of them, or saw others run that did no more, and placed a pod beside them.
        return GiveBack(every, WithdrawReason.OUTDATED)
    ending = ending_for(every, picture, now, time.time(), longest(lasts_s(member.pod) for member in unit.members))
    if ending is not None and ending.over and free:
        return GiveBack(free, WithdrawReason.UNENDED, ending.late)
    until = (
        _overdue(unit, claims, now, promise_s=promise_s, unschedulable_s=unschedulable_s)
        if ending is None
        else _waits(unit, ending)
    )
    if isinstance(until, GiveBack):
        if isinstance(size, Reason) and until.reason is not None:
            return msgspec.structs.replace(until, reason=until.reason.add(size.text))
        return until
    unread = any(picture.templates.unread_of(member.pod) for member in have)
    if len(claims) < wanted:
        late = tuple(missing[: wanted - len(claims)])
        if len(claims) + len(late) < wanted:
            return Wait(until=until, reason=_too_few(len(claims) + len(late), wanted, lacking))
        return Wait(until) if unread else Plan(late, len(late), until)
    if gated := tuple(member for member in have if member.pod.gated):
        if unread:
            return Wait(until)
        pins = [claims[member.uid].pin for member in gated]
        if aside := {pin.choice.node for pin in pins if pin is not None} & picture.inventory.aside:
            # Nobody can say if they are right: a leader that begins has no tables of any machine yet.
            return Wait(until, next_step.unassessed(min(aside)))
        if why := next(filter(None, (nic_places.unread(picture, member) for member in gated)), None):
            return Wait(until, why)  # the same
        return Lift(gated)
    if ending is not None:
        return ending if ending.pods else Wait(ending.look_at(now), ending.why)
    if all(is_seated(member, claims[member.uid]) for member in have):
        if any(claim.seat is None for claim in every):
            return Wait()  # nothing keeps them from being bound
        return Go(tuple(claim for claim in every if claim.seat is not None and GO not in claim.seat.told))
    return Wait(until=until)


def _waits(unit: Unit, ending: Ending) -> float:
    """Take in that a gang waits for others to end. Returns until when; its own deadlines begin when they are gone."""
    unit.promised_at = None
    for member in unit.members:
        member.promise.waits(member.pod.refused)
    return ending.until


def _free(claims: Mapping[str, ClaimRecord]) -> tuple[ClaimRecord, ...]:
    """Return the claims that can be taken back: of one with its devices and no seat the pod may be being bound."""
    return tuple(claim for claim in claims.values() if claim.devices is None or claim.seat is not None)


def _wanted(claims: Mapping[str, ClaimRecord]) -> int:
    """Return how many claims the plan has that some are of; 0 without any."""
    return max((claim.planned.size for claim in claims.values() if claim.planned is not None), default=0)


def is_seated(member: Member, claim: ClaimRecord) -> bool:
    """Return whether a member has its GPUs, and a place that the scheduler keeps for it.

    One that a pod of higher priority put out has its GPUs still, and the claim is reserved for nobody.
    """
    return claim.devices is not None and member.uid in claim.users and not claim.deleting


def _broken(claim: ClaimRecord, picture: Picture) -> WithdrawReason | None:
    """Return why a claim that the scheduler has not allocated never will be, or should not; None where it may."""
    if claim.devices is not None:
        return None
    if claim.pin is None:
        return WithdrawReason.DAMAGED
    if conflicts.rivals(picture, claim):
        return WithdrawReason.TAKEN
    return None if picture.inventory.keeps(claim.pin) else WithdrawReason.GONE


def _until(unit: Unit, now: float, promise_s: float) -> float:
    """Return when a gang's claims are given back unless all its pods have their seats by then."""
    if unit.promised_at is None:
        unit.promised_at = now
    return unit.promised_at + longest_s(len(unit.members), promise_s)


def longest_s(pods: int, promise_s: float) -> float:
    """Return how long a gang of so many pods may take from its claims to the last seat, seconds."""
    return min(promise_s + MEMBER_S * pods, max(LONGEST_S, promise_s))


def _overdue(
    unit: Unit, claims: Mapping[str, ClaimRecord], now: float, *, promise_s: float, unschedulable_s: float
) -> GiveBack | float:
    """Return the end of a gang's promise, or when that will be: nobody's GPUs are held for a part of it for long."""
    waiting = [
        (member, claims[member.uid])
        for member in unit.members
        if member.uid in claims and not member.pod.gated and not is_seated(member, claims[member.uid])
    ]
    until = _until(unit, now, promise_s)
    refused: list[Member] = []
    for member, claim in waiting:
        member.promise.seen(claim.uid, member.pod.refused, now)
        patient = next_step.patience(member, unschedulable_s)
        if patient is not None and now >= patient:
            refused.append(member)
        elif patient is not None:
            until = min(until, patient)
    if not refused and now < until:
        return until
    seats = sum(member.uid in claims and is_seated(member, claims[member.uid]) for member in unit.members)
    first = refused[0] if refused else waiting[0][0] if waiting else None
    told = "" if first is None else f"; {_pod(first.pod)}: {next_step.told(first.pod, first.pod.refused)}"
    back = _free(claims)
    if not back:
        return now + next_step.BOUND_S
    reason = Reason(Cause.GANG, f"{seats} of {_wanted(claims)} pods of its gang had their place in time{told}")
    return GiveBack(back, WithdrawReason.UNSCHEDULABLE if refused else WithdrawReason.OVERDUE, reason, tuple(refused))


def _pod(pod: Pod) -> str:
    return f"pod {pod.metadata.name}"


def in_order(members: Sequence[tuple[Member, Rank | None]]) -> tuple[Member, ...]:
    """Return a gang's members by their ranks; those without one after the others, the oldest first."""

    def key(each: tuple[Member, Rank | None]) -> tuple[bool, tuple[int, ...], str, str]:
        member, rank = each
        return rank is None, rank or (), member.pod.metadata.creation_timestamp or "", member.pod.metadata.name

    return tuple(member for member, _ in sorted(members, key=key))
