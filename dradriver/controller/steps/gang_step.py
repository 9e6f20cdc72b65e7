"""Decides the next step of a gang that has not started, from the states of its pods and claims. Pure.

state       record in the API                              next state when                  else
gathering   gated pods with the same gang                  as many as its size exist        pods are told how many exist
waiting     the same                                       a plan has places for all        pods are told why
planned     claims of one plan                             all exist, no GPU is taken       released
ungated     no gate, affinity to the plan's nodes          all members are allocated        released, at a deadline
allocated   claims allocated and reserved, pods not bound  all members are                  the same
go          a condition on all claims                      a claim has it: gang has started ``gang_running``
released    claims deleted, barriers removed               they are gone: planned again     waits within its nodes

If the controller is killed at any moment, one of these states remains, and the next leader continues from it. If gang
barriers do not keep pods from being bound (``Picture.barrier``), the gang has started once its first pod is bound.

All deadlines of such a gang are checked here: in ``_overdue``, and while earlier claims are deleted. The worker only
keeps a pause after a failed write. ``pod_step`` does the same for single pods, by the same rules (``rules.py``).

A gang's *plan* is the places (node and GPUs) of its pods. A *gang barrier device* in a pod's claim keeps the pod
unbound until its whole gang can start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.api.base.gang_barrier_device import GO
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.actions import Go, OpenGates, Place, Release, Settle, Step, Wait
from dradriver.controller.steps.deadlines import BOUND_S, GATHER_S, Deadlines
from dradriver.controller.steps.observe import GangState
from dradriver.controller.steps.rules import freed_at, is_seated, not_known, patience, scheduler_says
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.queue.pending import Member
from dradriver.reason import Cause, Reason

LEAVING: Final = Reason(Cause.POD, "Waiting until the earlier claims of the gang are gone.")


def gang_step(state: GangState, picture: Picture, now: float, deadlines: Deadlines) -> Step:
    """Return the next step for a gang that has not started.

    No pod of the gang is bound, and the scheduler was not told to bind any.

    Args:
        state: The state of the gang.
        picture: The cluster cache.
        now: The time by the event loop's clock.
        deadlines: Says how long to wait for the scheduler.
    """
    step = _step(state, picture, now, deadlines)
    if isinstance(step, Place | Wait) and (nominated := _nominated(state)):
        return Settle(unnominate=nominated)
    return step


def _step(state: GangState, picture: Picture, now: float, deadlines: Deadlines) -> Step:
    leaving = _leaving(state, now)
    if isinstance(leaving, Release):
        return leaving
    if not state.claims:
        return _gathering(state, now)
    if not state.is_hindered:
        return _placed(state, picture, now, deadlines)
    # Some members cannot go on. The GPUs of the others are not kept for long.
    kept = tuple(claim for claim in _free(state.claims) if not claim.deleting)
    blocked = state.blocked if state.lacks_members else None
    if kept and blocked is not None:
        return Release(kept, WithdrawReason.BLOCKED, blocked)
    claims = state.claims
    if kept and all(m.pod.gated and claims[m.uid].devices is None for m in state.workload.members if m.uid in claims):
        return Release(kept, WithdrawReason.OUTDATED)  # no scheduler has seen any of the pods yet
    reason = blocked or state.meddled or LEAVING
    times = [_until(state, now, deadlines)] if kept else []
    if kept and times[0] <= now:
        return Release(kept, WithdrawReason.OVERDUE, reason)
    if leaving is not None and leaving.until is not None:
        times.append(leaving.until)
    return Wait(until=min(times, default=None), reason=reason)


def _nominated(state: GangState) -> tuple[Member, ...]:
    """Return the gated members without a claim that still have a ``nominatedNodeName``.

    ``state`` is the gang's state. The scheduler keeps CPU for them on that node. No plan uses the node for them any
    more.
    """
    gated = [member for member in state.workload.members if member.pod.gated and member.may_nominate]
    return tuple(m for m in gated if m.pod.status.nominated_node_name and m.uid not in state.claims)


def _leaving(state: GangState, now: float) -> Wait | Release | None:
    """Return the step while a gang's earlier claims are being deleted; else None.

    If one of these claims keeps a gang barrier device (which keeps a pod unbound), the step tells the scheduler to
    release the device. Otherwise the gang waits. ``state`` is the gang's state; ``now`` is by the event loop's clock.
    """
    leaving = [(m, claim) for m in state.workload.members if (claim := state.claims.get(m.uid)) and claim.deleting]
    if not leaving:
        return None
    times = [(claim, at) for member, claim in leaving if (at := freed_at(member, claim, now)) is not None]
    if kept := tuple(claim for claim, at in times if at <= now):
        return Release(kept, WithdrawReason.OUTDATED)
    return Wait(until=min((at for _, at in times), default=None))


def _gathering(state: GangState, now: float) -> Step:
    """Return the step for a gang without claims, by its ``state``.

    A member can lack something that it needs first, such as a template that is not read. If the other members are
    enough for the gang, the plan leaves such a member out. ``now`` is by the event loop's clock.
    """
    workload, size = state.workload, state.size
    if not isinstance(size, tuple):
        return Wait(reason=size)
    least, most = (max(1, number - state.done) for number in size)
    ready = tuple(member for member in workload.members if member.uid not in state.lacking)
    if any(member.pod.pod_group for member in workload.members):
        # kube-scheduler tries no pod of a PodGroup while another has a gate (1.37.2, runPreEnqueuePlugins).
        least = max(least, min(len(workload.members), most))
    if len(ready) < least:
        return Wait(reason=_too_few(len(ready), least, state.lacking, done=state.done))
    if len(ready) < most and (until := workload.memory.gathered_at + GATHER_S) > now:
        return Wait(until=until)
    return Place(ready[:most], least)


def _too_few(ready: int, needed: int, lacking: Mapping[str, Reason | None], *, done: int = 0) -> Reason | None:
    """Return why a gang has too few pods; None while a needed object is being read.

    Args:
        ready: How many members can be placed.
        needed: How many the gang needs.
        lacking: The members that cannot be placed, by uid, each with what it lacks.
        done: How many pods of the gang's size need no GPUs.
    """
    if (why := next(filter(None, lacking.values()), None)) is not None:
        return why
    if ready + len(lacking) >= needed:
        return None
    others = f", and {done} need no GPUs" if done else ""
    return Reason(
        Cause.GANG, f"Waiting for more pods of the gang: {ready + len(lacking)} of {needed} pods exist{others}."
    )


def _placed(state: GangState, picture: Picture, now: float, deadlines: Deadlines) -> Step:
    """Return the step for a gang with at least one claim, by its ``state``.

    ``now`` is by the event loop's clock; ``deadlines`` says how long the scheduler may take.
    """
    workload, claims, size = state.workload, state.claims, state.size
    # ``size`` is the least and the largest number of pods, or why it is not known now. It was known when the claims
    # were made, and they say how many claims the plan has (``state.planned``).
    least = max(1, size[0] - state.done) if isinstance(size, tuple) else 1
    all_claims, revocable_claims = tuple(claims.values()), _free(claims)
    members_with_claim = [member for member in workload.members if member.uid in claims]
    is_all_gated = all(member.pod.gated for member in workload.members)

    # 1. Claims of different plans, or of none, do not fit together.
    plans = {None if claim.planned is None else claim.planned.plan for claim in all_claims}
    if len(plans) > 1 or None in plans:
        return Release(revocable_claims, WithdrawReason.OUTDATED) if revocable_claims else Wait()

    # 2. The gang lost a pod in a way after which the scheduler does not try the other pods again (``Gangs.is_asleep``).
    #    The release of their places makes it try them.
    if state.is_asleep and revocable_claims:
        return Release(revocable_claims, WithdrawReason.ASLEEP)

    # 3. Some claims can never be allocated (``state.broken`` has the reason by the pod's uid), or some are missing.
    if state.broken:
        # While all pods are gated, a new plan for all is better than one around the rest of this plan.
        broken = tuple(claims[uid] for uid in state.broken)
        return Release(all_claims if is_all_gated else broken, next(iter(state.broken.values())))
    missing = [member for member in workload.members if member.uid not in claims and member.uid not in state.lacking]
    if (len(claims) < state.planned or state.planned < least) and is_all_gated:
        # The controller was killed between two claims. Or it placed a pod near the pods of another gang of the same
        # name, which had started and has finished since.
        return Release(all_claims, WithdrawReason.OUTDATED)

    # 4. The deadline. While other pods have to end for the claims, theirs counts and not the scheduler's. ``ending`` is
    #    the record of these pods (``steps/ending.py``): ``pods`` are those that were not told to end yet, ``until`` is
    #    their deadline, and ``over`` says that it has passed or cannot be kept, for the reason ``late``.
    ending = state.ending
    if ending is not None and ending.over and revocable_claims:
        return Release(revocable_claims, WithdrawReason.UNENDED, ending.late)
    until = _overdue(state, now, deadlines) if ending is None else ending.until
    if isinstance(until, Release):
        if isinstance(size, Reason) and until.reason is not None:
            return msgspec.structs.replace(until, reason=until.reason.add(size.text))
        return until

    # 5. The claims that the plan still lacks. Until the template of a pod is read, its request is not known.
    is_template_unread = any(picture.templates.unread_of(member.pod) for member in members_with_claim)
    if len(claims) < state.planned:
        to_place = tuple(missing[: state.planned - len(claims)])
        if len(claims) + len(to_place) < state.planned:
            return Wait(until, _too_few(len(claims) + len(to_place), state.planned, state.lacking))
        return Wait(until) if is_template_unread else Place(to_place, len(to_place), until)

    # 6. The gates, once all is known that decides whether the claims are right.
    if gated := tuple(member for member in members_with_claim if member.pod.gated):
        if is_template_unread:
            return Wait(until)
        why = not_known(((member, claims[member.uid]) for member in gated), picture)
        return OpenGates(gated) if why is None else Wait(until, why)

    # 7. The pods that have to end. As a step, the record says: end ``pods``. If all were told, wait until they are
    #    gone.
    if ending is not None:
        return ending if ending.pods else Wait(ending.look_at(now), ending.why)

    # 8. The gang barrier: once the scheduler keeps a place for each pod, they are told to go together.
    if all(is_seated(member, claims[member.uid]) for member in members_with_claim):
        if any(claim.seat is None for claim in all_claims):
            return Wait()  # nothing keeps them from being bound
        return Go(tuple(claim for claim in all_claims if claim.seat is not None and GO not in claim.seat.told))
    return Wait(until=until)


def _free(claims: Mapping[str, ClaimRecord]) -> tuple[ClaimRecord, ...]:
    """Return the claims of a gang that may be deleted to free their GPUs.

    Each claim without allocated devices may be. A claim with allocated devices may be deleted only if one of them is a
    gang barrier device: this keeps its pod unbound. Otherwise the pod may be bound at this moment.
    """
    return tuple(claim for claim in claims.values() if claim.devices is None or claim.seat is not None)


def _until(state: GangState, now: float, deadlines: Deadlines) -> float:
    """Return the deadline of a gang's claims, by the event loop's clock.

    At this time they are deleted unless the scheduler has allocated all of them. ``deadlines`` says how long that may
    take.
    """
    placed_at = state.workload.memory.placed_at
    return (now if placed_at is None else placed_at) + deadlines.placed_s(len(state.workload.members))


def _overdue(state: GangState, now: float, deadlines: Deadlines) -> Release | float:
    """Return the release of a gang's claims if their deadline has passed; else the deadline.

    The deadline is earlier if the scheduler refuses a member. If it has passed and no claim may be deleted, the result
    is when to check again. So an incomplete gang does not keep GPUs from other workloads for long. ``deadlines`` says
    how long the scheduler may take.
    """
    workload, claims = state.workload, state.claims
    waiting = [
        member
        for member in workload.members
        if member.uid in claims and not member.pod.gated and not is_seated(member, claims[member.uid])
    ]
    until = _until(state, now, deadlines)
    refused: list[Member] = []
    for member in waiting:
        give_up_at = patience(member, deadlines)  # None while the scheduler finds room for the member
        if give_up_at is not None and now >= give_up_at:
            refused.append(member)
        elif give_up_at is not None:
            until = min(until, give_up_at)
    if not refused and now < until:
        return until
    seated = sum(member.uid in claims and is_seated(member, claims[member.uid]) for member in workload.members)
    example = next(iter(refused or waiting), None)
    scheduler_text = "" if example is None else f" {scheduler_says(example.pod, example.pod.refused)}"
    revocable_claims = _free(claims)
    if not revocable_claims:
        return now + BOUND_S
    reason = Reason(
        Cause.GANG, f"Only {seated} of {state.planned} pods of the gang had a place in time.{scheduler_text}"
    )
    cause = WithdrawReason.UNSCHEDULABLE if refused else WithdrawReason.OVERDUE
    return Release(revocable_claims, cause, reason, tuple(refused))
