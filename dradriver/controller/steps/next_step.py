"""What has to be done for one pod now: from its state to a step. Pure; the worker does the step.

A promise is a claim that the scheduler has not allocated. It ends by itself: whatever keeps a lifted pod waiting,
nobody's GPUs are held for it longer than a deadline. All deadlines of a pod that is placed by itself are checked here.
Nothing returns before ``next_step``, whatever the pod lacks or cannot be read of it; only a pause after a failed write
is kept. ``gang_step`` does the same for gangs that have not started.
"""

from __future__ import annotations

import re
import time
from typing import Final

from dradriver.api.base import names
from dradriver.api.base.gang_barrier_device import GO, OFF
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import claim_key, is_set
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.nodes.pod_demands import lasts_s
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import nic_places
from dradriver.controller.steps.ending import Ending, ending_for
from dradriver.controller.steps.pod_steps import Go, Keep, LetGo, Place, Settle, Step, Wait, Withdraw
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.queue.units import Member
from dradriver.reason import Cause, Reason

PROMISE_S: Final = 30.0
UNSCHEDULABLE_S: Final = 5.0
OVERLOOKED_S: Final = 1.0
UNSEATED_S: Final = 10.0  # that a pod may have its GPUs and no place on their node
BOUND_S: Final = 60.0  # that a scheduler may take to bind a pod that was told to go: it looks every 5 s
LET_GO_S: Final = 15.0  # that it may take to let go of a claim that is deleted and off; after a restart it never does
SCHEDULER_PAUSE_S: Final = 10.0  # kube-scheduler's longest pause before it tries a pod again (podMaxBackoffSeconds)


def next_step(
    member: Member,
    picture: Picture,
    now: float,
    *,
    promise_s: float = PROMISE_S,
    unschedulable_s: float = UNSCHEDULABLE_S,
    wall: float | None = None,
) -> Step:
    """Return what has to be done for a living pod of ours.

    Args:
        member: The pod; the times of its claim are kept up to date, and which one of others it is to share.
        picture: The cluster.
        now: The loop's clock.
        promise_s: How long a promise may last.
        unschedulable_s: How long once the scheduler says that it finds no room.
        wall: The time that claims are written by, seconds since the epoch; None for this process's.
    """
    pod, claim, wall = member.pod, picture.claim_of(member.pod), time.time() if wall is None else wall
    if pod.spec.node_name and (claim is None or _is_unused(pod, claim)):
        return _bypassed(member, claim, now, promise_s=promise_s)
    if pod.spec.node_name:
        untrue = _untrue(pod, claim) | ({names.REASON: None} if names.REASON in pod.metadata.annotations else {})
        uses = claim is not None and pod.metadata.uid in claim.users
        return Settle(untrue, _unowned(pod, claim) if uses else None)
    others = other_gates(pod)
    if claim is None:
        if others and pod.gated:
            # A set that is promised to a pod which another gate still holds would be of use to nobody.
            return Wait(reason=other_gate(others))
        member.joins = ""
        return _behind(pod, picture) or _place(pod, picture)
    if is_set(claim.key) and (step := _sharing(pod, claim, picture, others)) is not None:
        member.joins = claim.uid
        return step
    if not claim.owned_by(pod.metadata.uid):
        name = claim_key(pod)
        assert name is not None
        return Wait(
            reason=Reason(Cause.POD, f"claim {name[1]} belongs to somebody else; delete this pod and create it anew")
        )
    if claim.deleting:
        stuck_at = stuck(member, claim, now)
        if stuck_at is not None and stuck_at <= now:
            return LetGo(claim)
        gone = Reason(Cause.POD, f"waits until its earlier claim {claim.metadata.name} is gone")
        return Wait(until=stuck_at, reason=gone)
    if pod.gated:
        return _gated(member, claim, picture, others, now, promise_s=promise_s, wall=wall)
    if claim.seat is not None:
        return _seated(member, claim, now)
    if claim.devices is not None:
        return Wait(texts=_untrue(pod, claim))
    if claim.handed_over:
        member.promise.claim_uid = claim.uid
        return Wait()  # it keeps nothing from anybody
    if (ending := ending_for((claim,), picture, now, wall, lasts_s(pod))) is not None and _intact(claim, picture):
        return _preempting(member, claim, ending, now)
    return _promised(member, claim, picture, now, promise_s=promise_s, unschedulable_s=unschedulable_s)


def _place(pod: Pod, picture: Picture) -> Step:
    """Return that a pod wants a place, once the template that says what it asks for is read."""
    return Wait() if picture.templates.unread_of(pod) is not None else Place()


def _preempting(member: Member, claim: ClaimRecord, ending: Ending, now: float) -> Step:
    """Return what is done for a pod while others end for it.

    Neither how long a promise may last nor what the scheduler says of the pod counts until they have.
    """
    member.promise.waits(member.pod.refused)
    if ending.over:
        return Withdraw(claim, WithdrawReason.UNENDED, ending.late)
    return ending if ending.pods else Wait(until=ending.look_at(now), reason=ending.why)


def _intact(claim: ClaimRecord, picture: Picture) -> bool:
    """Return whether a claim is pinned to what is there and nobody else was given."""
    return claim.pin is not None and picture.inventory.keeps(claim.pin) and not conflicts.rivals(picture, claim)


def stuck(member: Member, claim: ClaimRecord, now: float) -> float | None:
    """Return when something has to be done for a claim to go that is being deleted; None where it goes by itself.

    The scheduler lets go of one with a seat when it is told that the seat is off. One that was started anew meanwhile,
    or failed to write it, does not: it looks at no pod whose claim is being deleted (1.36.3, foreachPodResourceClaim).
    """
    if claim.seat is None:
        return None
    return now if OFF not in claim.seat.told else member.promise.leaves(claim.uid, now) + LET_GO_S


def _seated(member: Member, claim: ClaimRecord, now: float) -> Step:
    """Return what is done for a pod of a gang that has started, with its GPUs and a seat: it is bound soon, or late.

    A pod of higher priority may have put it out of its place on the node meanwhile, which leaves it its GPUs.
    """
    assert claim.seat is not None, "asked of seats"
    seated = member.uid in claim.users
    member.promise.claim_uid = claim.uid
    if seated and GO not in claim.seat.told:
        return Go(claim)
    until = member.promise.stays(seated, now) + (BOUND_S if seated else UNSEATED_S)
    return Wait(until=until, texts=_untrue(member.pod, claim)) if now < until else LetGo(claim)


def _is_unused(pod: Pod, claim: ClaimRecord) -> bool:
    """Return whether a claim is a pod's promise of GPUs that the scheduler has not given it, or was."""
    return claim.pin is not None and claim.devices is None and claim.owned_by(pod.metadata.uid)


def _bypassed(member: Member, claim: ClaimRecord | None, now: float, *, promise_s: float) -> Step:
    """Return what is done for a pod that is bound and whose claim was not allocated, as far as is seen so far.

    The scheduler allocates first, but claims and pods are seen apart. Who binds a pod by hand and leaves its claim
    aside leaves the kubelet waiting for it for ever. The claim is deleted as it was seen only: of a later state the
    server knows.
    """
    reason = Reason(
        Cause.SCHEDULER,
        f"it was bound to node {member.pod.spec.node_name} without its GPUs; delete it, and leave binding to a "
        "scheduler that allocates claims",
    )
    if now < (until := member.promise.bound(now) + promise_s):
        said = member.pod.metadata.annotations.get(names.REASON, reason.text)  # perhaps why it waited before
        return Wait(until=until, texts={} if said == reason.text else {names.REASON: None})
    return Wait(reason=reason) if claim is None or claim.deleting else Withdraw(claim, WithdrawReason.BYPASSED, reason)


def _behind(pod: Pod, picture: Picture) -> Step | None:
    """Return the wait of a pod whose set is chosen for another that shares it; None where it leads, or shares none."""
    key = claim_key(pod)
    if key is None or not is_set(key) or (lead := picture.claim_users.lead(key)) is None or _same(lead, pod):
        return None
    return Wait(reason=_led(key[1], lead))


def _sharing(pod: Pod, claim: ClaimRecord, picture: Picture, others: list[str]) -> Step | None:
    """Return what a pod does whose claim others share; None where it is the one that the claim was made for.

    Nobody else is lifted before the scheduler has allocated the claim: until then it may end up on another node.
    """
    name = claim.metadata.name
    if claim.set is None:
        return Wait(
            reason=Reason(
                Cause.POD,
                f"claim {name} is not one that the driver made for pods to share; write another name as "
                f"{names.SHARED_CLAIM}, or delete that claim",
            )
        )
    if claim.deleting:
        return Wait(reason=Reason(Cause.POD, f"waits until the earlier claim {name} is gone, and its pods with it"))
    if claim.devices is None:
        heir = picture.claim_users.heir(claim)
        if heir is None:
            ended = f"waits until the earlier claim {name}, whose pods have ended, is gone"
            return Wait(reason=Reason(Cause.POD, ended))
        return None if _same(heir, pod) else Wait(reason=_led(name, heir))
    if pod.gated:
        return Wait(reason=other_gate(others)) if others else _place(pod, picture)
    refused = pod.refused
    return Wait(
        texts=_untrue(pod, claim),
        reason=None if refused is None else told(pod, refused).add(f"its set {name} is in use by other pods there"),
        joins=_unowned(pod, claim),
    )


def _led(name: str, lead: Pod) -> Reason:
    return Reason(Cause.GPUS, f"its set {name} is being placed with pod {lead.metadata.name}")


def _same(one: Pod, other: Pod) -> bool:
    return one.metadata.uid == other.metadata.uid


def _unowned(pod: Pod, claim: ClaimRecord | None) -> ClaimRecord | None:
    """Return the shared claim that a pod uses without owning it: it would end with the owners. None for no such."""
    mine = claim is None or claim.set is None or claim.deleting or claim.owned_by(pod.metadata.uid)
    return None if mine else claim


def _gated(
    member: Member,
    claim: ClaimRecord,
    picture: Picture,
    others: list[str],
    now: float,
    *,
    promise_s: float,
    wall: float,
) -> Step:
    if [uid for uid in claim.users if uid != member.uid]:
        return Wait(
            reason=Reason(
                Cause.POD,
                f"claim {claim.metadata.name} is used by another pod; delete that pod: a claim's GPUs are one pod's",
            )
        )
    if claim.devices is not None:
        # No scheduler gives devices to a gated pod: this picture of the pod is an old one, or somebody meddled.
        given = f"its claim {claim.metadata.name} was given devices while it was gated; delete this pod"
        return Wait(reason=Reason(Cause.POD, given))
    if claim.preempts is not None and wall >= claim.preempts.until:
        return Withdraw(claim, WithdrawReason.OUTDATED)
    if others:
        return Withdraw(claim, WithdrawReason.BLOCKED, other_gate(others))
    known, why = _known(member, claim, picture)
    if known:
        return Keep(claim)
    member.promise.seen(claim.uid, member.pod.refused, now)
    until = member.promise.since + promise_s
    return Wait(until=until, reason=why) if now < until else Withdraw(claim, WithdrawReason.OVERDUE, why)


def _known(member: Member, claim: ClaimRecord, picture: Picture) -> tuple[bool, Reason | None]:
    """Return whether all is known that says if a gated pod's claim is right; if not, what to tell the pod."""
    if picture.templates.unread_of(member.pod) is not None:
        return False, None
    if claim.pin is None:
        return True, None
    if (node := claim.pin.choice.node) in picture.inventory.aside:
        return False, unassessed(node)
    why = nic_places.unread(picture, member)
    return why is None, why


def unassessed(node: str) -> Reason:
    """Return the reason of a pod whose claim is on a node with a machine that has no tables yet."""
    return Reason(Cause.NODES, f"waits until the GPUs of its node {node} are assessed")


def _promised(
    member: Member, claim: ClaimRecord, picture: Picture, now: float, *, promise_s: float, unschedulable_s: float
) -> Step:
    if claim.pin is None:
        return Withdraw(claim, WithdrawReason.DAMAGED)
    if conflicts.rivals(picture, claim):
        return Withdraw(claim, WithdrawReason.TAKEN)
    if not picture.inventory.keeps(claim.pin):
        return Withdraw(claim, WithdrawReason.GONE)
    pod, promise, refused = member.pod, member.promise, member.pod.refused
    promise.seen(claim.uid, refused, now)
    until, cause = promise.since + promise_s, WithdrawReason.OVERDUE
    if promise.unschedulable_at is not None and not pod.status.nominated_node_name:
        if _overlooked(member, claim, picture):
            # kube-scheduler counts twice what it allocates of a shared device and sees allocated at the same time, and
            # then lets a pod wait until some other device is given back (seen with Kubernetes 1.36.3).
            overlooked = promise.unschedulable_at + min(OVERLOOKED_S, unschedulable_s)
            return Wait(until=overlooked) if now < overlooked else Withdraw(claim, WithdrawReason.OVERLOOKED)
        patient = patience(member, unschedulable_s)
        if patient is not None and patient < until:
            until, cause = patient, WithdrawReason.UNSCHEDULABLE
    if now < until:
        return Wait(until=until)  # what the pod says is put right once the claim has its devices
    return Withdraw(claim, cause, told(pod, refused))


def patience(member: Member, unschedulable_s: float) -> float | None:
    """Return until when a scheduler is waited for that says that it finds no room; None while it does not.

    What it said of the claim before it may say again, and then nothing is written: it has had the time to.
    """
    promise = member.promise
    if promise.unschedulable_at is None or member.pod.status.nominated_node_name:
        return None
    return promise.unschedulable_at + unschedulable_s + (0.0 if promise.said is None else SCHEDULER_PAUSE_S)


def _overlooked(member: Member, claim: ClaimRecord, picture: Picture) -> bool:
    """Return whether the scheduler may find no room for a part by mistake: until it was made anew once.

    So it is with devices that claims share: what they have is a sum. A MIG slice may also be a device of its own.
    """
    pin = claim.pin
    if pin is None or member.promise.renewed:
        return False
    summed = any(taken is not None and device not in pin.apart for device, taken in pin.taken.items())
    return summed and conflicts.fits(picture, claim)


# Earlier builds wrote these on pods that do not get them now. They are true, so no pod is written again to remove them.
_MORE_BEFORE: Final = (*names.FORMER_RESULTS, names.BANDWIDTH)


def _untrue(pod: Pod, claim: ClaimRecord | None) -> dict[str, str | None]:
    """Return the annotations that do not say what the pod's claim holds; a stranger's claim says nothing.

    Nor does one without devices: where two leaders overlap, one of them may know another claim than the pod has.
    """
    if claim is None or claim.devices is None or claim.pin is None:
        return {}
    uses = claim.set is not None and pod.metadata.uid in claim.users
    if not (uses or claim.owned_by(pod.metadata.uid)):
        return {}
    wanted = claim.pin.texts
    del wanted[names.REASON]
    written = pod.metadata.annotations
    if all(written.get(key) == value for key, value in wanted.items() if key not in _MORE_BEFORE):
        return {}
    return wanted


def told(pod: Pod, refused: str | None) -> Reason:
    """Return the reason of a pod that is not bound: what the scheduler says of it; None for nothing."""
    if refused is None:
        scheduler = f"the scheduler {pod.spec.scheduler_name[:63]!r}" if pod.spec.scheduler_name else "the scheduler"
        text = f"{scheduler} has not bound the pod to its nodes; if there is no such scheduler, delete the pod"
        return Reason(Cause.SCHEDULER, text)
    why = _stable(refused) or "it does not say why"
    return Reason(Cause.SCHEDULER, f"the scheduler finds no room on its nodes: {why}")


def _stable(message: str) -> str:
    """Return a scheduler's message without its numbers, which change with every event: ``0/5 nodes are available``."""
    text = re.sub(r"^\d+/\d+ nodes are available: ", "", message[:1024]).partition(" preemption:")[0]
    text = text.partition(". ")[0].partition(" still not schedulable")[0]
    causes = {re.sub(r"^\d+ (?=[a-zA-Z])", "", cause.strip(" .")) for cause in text.split(", ")}
    return ", ".join(sorted(causes - {""}))  # the scheduler sorts them by text, counts included


def other_gates(pod: Pod) -> list[str]:
    """Return the scheduling gates of others that hold a pod."""
    return [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]


def other_gate(others: list[str]) -> Reason:
    """Return the reason of a pod that gates of others hold."""
    return Reason(Cause.GATE, f"waits for scheduling gate {others[0]} of another controller to be lifted first")
