"""Decides the next step of a pod that is placed by itself, from its state. Pure.

Once a pod's gate is removed, its GPUs are kept from other pods only until a deadline. If the pod is not bound by this
time, for any cause, the claim is deleted. All deadlines of such a pod are checked here. ``gang_step`` does the same for
gangs that have not started, by the same rules (``rules.py``).

A *shared* claim is one whose GPUs several pods use. A *gang barrier device* in a pod's claim keeps the pod unbound
until its whole gang can start.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.base import names
from dradriver.api.base.gang_barrier_device import GO
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import claim_key, is_set
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.actions import Go, OpenGates, Place, Release, Settle, Step, Wait
from dradriver.controller.steps.deadlines import BOUND_S, OVERLOOKED_S, UNSEATED_S, Deadlines
from dradriver.controller.steps.observe import Phase, PodState
from dradriver.controller.steps.rules import (
    broken_by,
    freed_at,
    is_preempting,
    other_gate,
    other_gates,
    patience,
    scheduler_says,
)
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.queue.memory import PodMemory
from dradriver.queue.pending import Member
from dradriver.reason import Cause, Reason


def pod_step(state: PodState, picture: Picture, now: float, deadlines: Deadlines) -> Step:
    """Return the next step for a single pod.

    Args:
        state: The state of the pod.
        picture: The cluster cache.
        now: The time by the event loop's clock.
        deadlines: Says how long to wait for the scheduler.
    """
    member, claim = state.member, state.claim
    # The table at the top of ``observe.py`` says what each phase is and what ends it. ``claim`` is the claim that the
    # pod names: its own, a shared one, or, in FOREIGN, somebody else's of this name.
    if state.phase is Phase.BYPASSED:
        return _bypassed(member, claim, now, deadlines)
    if claim is None:
        return _unclaimed(member, picture, now)
    match state.phase:
        case Phase.BOUND:
            return _bound(member.pod, claim)
        case Phase.SHARING:
            return _sharing(member, claim, picture, now)
        case Phase.FOREIGN:
            key = claim_key(member.pod)
            name = claim.metadata.name if key is None else key[1]
            text = f"Claim {name} does not belong to this pod. Delete the pod and create it again."
            return Wait(reason=Reason(Cause.POD, text))
        case Phase.LEAVING:
            return _leaving(member, claim, now)
        case Phase.BARRIER:
            return _at_barrier(member, claim, now)
        case Phase.ALLOCATED:
            return _settled(member.pod, claim) or Wait()
        case Phase.HANDED_OVER:
            return Wait()  # it keeps no GPU from anybody
        case Phase.PREEMPTING:
            return _preempting(state, claim, now)
        case Phase.BROKEN:
            cause = broken_by(claim, picture)
            assert cause is not None, "the phase says so"
            return Release((claim,), cause)
        case Phase.TENTATIVE:
            return _tentative(member, claim, picture, now, deadlines)
        case _:
            return _gated(state, claim, now, deadlines)  # MEDDLED, OUTDATED, BLOCKED, UNREAD and GATED


def _unclaimed(member: Member, picture: Picture, now: float) -> Step:
    pod = member.pod
    if pod.status.nominated_node_name and member.may_nominate and member.is_open:
        return Settle(unnominate=(member,))
    if pod.gated and (others := other_gates(pod)):
        # A set that is promised to a pod which another gate still holds would be of use to nobody.
        return Wait(reason=other_gate(pod, others))
    key = claim_key(pod)
    lead = picture.claim_users.lead(key) if key is not None and is_set(key) else None
    if key is not None and lead is not None and lead.metadata.uid != pod.metadata.uid:
        return Wait(reason=_led(key[1], lead))
    return _place(member, picture, now)


def _place(member: Member, picture: Picture, now: float, *, joins: str = "") -> Step:
    """Return the step that places a pod; a wait while something is missing.

    The pod waits while its template is read. It also waits for a while after another program deleted its claim.
    ``joins`` is the uid of the shared claim to join; empty for a claim of its own. ``now`` is by the event loop's
    clock.
    """
    if picture.templates.unread_of(member.pod) is not None:
        return Wait()
    # Whoever deletes its claims may go on doing so.
    lost_until = member.memory.lost_until
    return Wait(until=lost_until) if now < lost_until else Place((member,), joins=joins)


def _bound(pod: Pod, claim: ClaimRecord) -> Settle:
    texts = _untrue(pod, claim) | ({names.REASON: None} if names.REASON in pod.metadata.annotations else {})
    return Settle(texts, _unowned(pod, claim) if pod.metadata.uid in claim.users else None)


def _bypassed(member: Member, claim: ClaimRecord | None, now: float, deadlines: Deadlines) -> Step:
    """Return the step for a bound pod whose claim is not allocated.

    The scheduler allocates a claim before it binds the pod, but the reflectors may show the pod first. So the step
    waits. If a user has bound the pod by hand, the claim is never allocated, and the kubelet waits for it for ever.
    After a deadline the step deletes the claim, but only the version that was seen. ``now`` is by the event loop's
    clock; ``deadlines`` has this deadline.
    """
    pod, since = member.pod, member.memory.bound_at
    reason = Reason(
        Cause.SCHEDULER,
        f"The pod was bound to node {pod.spec.node_name} without its GPUs. Delete it, and use a scheduler that "
        "allocates claims.",
    )
    until = (now if since is None else since) + deadlines.promise_s
    if now >= until:
        if claim is None or claim.deleting:
            return Wait(reason=reason)
        return Release((claim,), WithdrawReason.BYPASSED, reason)
    waited = pod.metadata.annotations.get(names.REASON)  # perhaps why it waited before
    return Wait(until=until) if waited in (None, reason.text) else Settle({names.REASON: None})


def _sharing(member: Member, claim: ClaimRecord, picture: Picture, now: float) -> Step:
    """Return the step for a pod whose shared claim was made for another pod.

    The gate of the pod stays until the scheduler has allocated the claim: before that, the claim can still get another
    node.
    """
    pod, name = member.pod, claim.metadata.name
    if claim.set is None:
        text = (
            f"Claim {name} exists, but the driver did not create it for sharing. Write another name as "
            f"{names.SHARED_CLAIM}, or delete that claim."
        )
        return Wait(reason=Reason(Cause.POD, text))
    if claim.deleting:
        return Wait(reason=Reason(Cause.POD, f"Waiting until the deleted claim {name} and its pods are gone."))
    if claim.devices is None:
        heir = picture.claim_users.heir(claim)
        if heir is None:
            ended = f"Waiting until claim {name} is gone, all its pods have ended."
            return Wait(reason=Reason(Cause.POD, ended))
        return Wait(reason=_led(name, heir))
    if pod.gated:
        other_gate_names = other_gates(pod)
        return (
            Wait(reason=other_gate(pod, other_gate_names))
            if other_gate_names
            else _place(member, picture, now, joins=claim.uid)
        )
    if (settle := _settled(pod, claim)) is not None:
        return settle
    if pod.refused is None:
        return Wait()
    return Wait(reason=scheduler_says(pod, pod.refused).add(f"Other pods use the shared claim {name} there"))


def _led(name: str, lead: Pod) -> Reason:
    return Reason(
        Cause.GPUS, f"Waiting for pod {lead.metadata.name}, which gets a place for the shared claim {name} first."
    )


def _leaving(member: Member, claim: ClaimRecord, now: float) -> Step:
    free_at = freed_at(member, claim, now)
    if free_at is not None and free_at <= now:
        return Release((claim,), None)
    gone = Reason(Cause.POD, f"Waiting until the earlier claim {claim.metadata.name} of the pod is gone.")
    return Wait(until=free_at, reason=gone)


def _at_barrier(member: Member, claim: ClaimRecord, now: float) -> Step:
    """Return the step for a pod at the gang barrier once its gang has started.

    The gang barrier keeps the gang's pods unbound until the gang starts. The scheduler then binds the pod soon;
    otherwise its claim is released at a deadline. If a pod of higher priority took its place on the node, the claim is
    allocated and not reserved. This case has a deadline of its own.
    """
    assert claim.seat is not None, "the phase says so"
    is_seated = member.uid in claim.users
    if is_seated and GO not in claim.seat.told:
        return Go((claim,))
    since = now if member.memory.barrier is None else member.memory.barrier[2]
    until = since + (BOUND_S if is_seated else UNSEATED_S)
    if now >= until:
        return Release((claim,), None)
    return _settled(member.pod, claim) or Wait(until=until)


def _preempting(state: PodState, claim: ClaimRecord, now: float) -> Step:
    """Return the step for a pod while other pods end for it.

    Until these have ended, only their deadline counts, not the deadline for the scheduler. ``state`` is the pod's
    state; ``now`` is by the event loop's clock.
    """
    ending = state.ending
    assert ending is not None, "the phase says so"
    if ending.over:
        return Release((claim,), WithdrawReason.UNENDED, ending.late)
    return ending if ending.pods else Wait(until=ending.look_at(now), reason=ending.why)


def _gated(state: PodState, claim: ClaimRecord, now: float, deadlines: Deadlines) -> Step:
    member = state.member
    match state.phase:
        case Phase.MEDDLED if claim.devices is None or any(uid != member.uid for uid in claim.users):
            text = f"Claim {claim.metadata.name} of this pod is used by another pod. Delete that pod."
            return Wait(reason=Reason(Cause.POD, text))
        case Phase.MEDDLED:
            # No scheduler gives devices to a gated pod: this state of the pod is an old one, or somebody meddled.
            text = f"Claim {claim.metadata.name} was allocated while the pod had its scheduling gate. Delete this pod."
            return Wait(reason=Reason(Cause.POD, text))
        case Phase.OUTDATED:
            return Release((claim,), WithdrawReason.OUTDATED)
        case Phase.BLOCKED:
            return Release((claim,), WithdrawReason.BLOCKED, other_gate(member.pod, other_gates(member.pod)))
        case Phase.UNREAD:
            until = member.memory.placed_at + deadlines.promise_s
            if now < until:
                return Wait(until=until, reason=state.unread)
            return Release((claim,), WithdrawReason.OVERDUE, state.unread)
        case _:
            return OpenGates((member,))


def _tentative(member: Member, claim: ClaimRecord, picture: Picture, now: float, deadlines: Deadlines) -> Step:
    pod, memory = member.pod, member.memory
    until, cause = memory.placed_at + deadlines.promise_s, WithdrawReason.OVERDUE
    if memory.unschedulable_at is not None and not is_preempting(pod):
        if _is_overlooked(memory, claim, picture):
            # kube-scheduler counts twice what it allocates of a shared device and sees allocated at the same time, and
            # then lets a pod wait until some other device is given back (seen with Kubernetes 1.36.3).
            overlooked = memory.unschedulable_at + min(OVERLOOKED_S, deadlines.unschedulable_s)
            return Wait(until=overlooked) if now < overlooked else Release((claim,), WithdrawReason.OVERLOOKED)
        patient = patience(member, deadlines)
        if patient is not None and patient < until:
            until, cause = patient, WithdrawReason.UNSCHEDULABLE
    if now < until:
        return Wait(until=until)  # what the pod says is put right once the claim has its devices
    refused = (member,) if cause is WithdrawReason.UNSCHEDULABLE else ()
    return Release((claim,), cause, scheduler_says(pod, pod.refused), refused)


def _is_overlooked(memory: PodMemory, claim: ClaimRecord, picture: Picture) -> bool:
    """Return whether the scheduler may have refused a fraction of a GPU by mistake.

    This can happen with devices that several claims share, because the scheduler can count one use twice. It is assumed
    only once for a pod. ``memory`` shows whether the controller has created the claim again for this cause.
    """
    pin = claim.pin
    if pin is None or memory.is_renewed:
        return False
    summed = any(taken is not None and device not in pin.apart for device, taken in pin.taken.items())
    return summed and conflicts.fits(picture, claim)


# Earlier builds wrote these on pods that do not get them now. They are true, so no pod is written again to remove them.
_MORE_BEFORE: Final = (*names.FORMER_RESULTS, names.BANDWIDTH)


def _settled(pod: Pod, claim: ClaimRecord) -> Settle | None:
    """Return the step that corrects a pod's annotations and its claim's owners.

    Returns None if both are right.
    """
    settle = Settle(_untrue(pod, claim), _unowned(pod, claim))
    return None if settle.is_done else settle


def _untrue(pod: Pod, claim: ClaimRecord) -> dict[str, str | None]:
    """Return the annotations that the pod must get, because it shows annotations for another claim.

    This can happen if two leaders overlap: one wrote the annotations for a claim that has been replaced since. Empty if
    the annotations are right, or if the claim belongs to another pod or has no devices.
    """
    if claim.devices is None or claim.pin is None:
        return {}
    is_user = claim.set is not None and pod.metadata.uid in claim.users
    if not (is_user or claim.owned_by(pod.metadata.uid)):
        return {}
    texts = claim.pin.texts
    del texts[names.REASON]
    written = pod.metadata.annotations
    if all(written.get(key) == value for key, value in texts.items() if key not in _MORE_BEFORE):
        return {}
    return texts


def _unowned(pod: Pod, claim: ClaimRecord) -> ClaimRecord | None:
    """Return the shared claim that a pod uses without owning it; else None.

    The pod must become an owner. Otherwise Kubernetes deletes the claim together with the other owners.
    """
    is_own = claim.set is None or claim.deleting or claim.owned_by(pod.metadata.uid)
    return None if is_own else claim
