"""Rules for single pods and gangs alike: what breaks a claim, and how long to wait for the scheduler.

``pod_step``, ``gang_step`` and ``observe`` call this module.

A claim is *broken* if its chosen GPUs are gone, unusable or unreadable, or are allocated to another claim.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.gang_barrier_device import OFF
from dradriver.api.base.pods import Pod
from dradriver.api.vocabulary import messages
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import node_limits
from dradriver.controller.steps.deadlines import LET_GO_S, SCHEDULER_PAUSE_S, Deadlines
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.queue.pending import Member
from dradriver.reason import Cause, Reason


def broken_by(claim: ClaimRecord, picture: Picture) -> WithdrawReason | None:
    """Return why an unallocated claim cannot or should not be allocated; None if it can."""
    if claim.devices is not None:
        return None
    if claim.pin is None:
        return WithdrawReason.DAMAGED
    if conflicts.rivals(picture, claim):
        return WithdrawReason.TAKEN
    return None if picture.inventory.keeps(claim.pin) else WithdrawReason.GONE


def is_seated(member: Member, claim: ClaimRecord) -> bool:
    """Return whether the scheduler keeps GPUs and a node for a gang member.

    This is not so without allocated devices, or while the claim is being deleted. Nor is it so in two other cases. A
    pod of higher priority took the place: then the claim has its GPUs, but is reserved for no pod. Or the scheduler was
    told that the gang barrier, which keeps pods unbound, is off: then it releases the pod.
    """
    is_off = claim.seat is not None and OFF in claim.seat.told
    return claim.devices is not None and member.uid in claim.users and not claim.deleting and not is_off


def freed_at(member: Member, claim: ClaimRecord, now: float) -> float | None:
    """Return when the controller must help to delete a claim; None if never.

    Only a claim with a gang barrier device, which keeps its pod unbound, may need help. The scheduler releases the
    claim when it is told that the barrier is off. A scheduler that was restarted meanwhile, or failed to write the
    release, does not: it ignores pods whose claims are being deleted (1.36.3, foreachPodResourceClaim).

    The time is by the event loop's clock. If the result equals ``now``, the scheduler must be told at once.
    """
    if claim.seat is None:
        return None
    if OFF not in claim.seat.told or member.memory.leaving is None:
        return now
    return member.memory.leaving[1] + LET_GO_S


def patience(member: Member, deadlines: Deadlines) -> float | None:
    """Return until when a scheduler's refusal of a pod is tolerated; None without a refusal.

    The result is None, too, while the scheduler preempts other pods for this pod. ``deadlines`` says how long a refusal
    is tolerated. If the scheduler also refused the pod with its last claim, it may repeat the same message. The API
    does not show a repeated message, so the controller waits longer. The time is by the event loop's clock.
    """
    memory = member.memory
    if memory.unschedulable_at is None or is_preempting(member.pod):
        return None
    pause_s = 0.0 if memory.refused_before is None else SCHEDULER_PAUSE_S
    return memory.unschedulable_at + deadlines.unschedulable_s + pause_s


def is_preempting(pod: Pod) -> bool:
    """Return whether the scheduler ends other pods to make room for this pod.

    That is assumed if the pod has a nominated node and may preempt. The controller nominates nodes, too. But if the
    scheduler finds no room and no pod to end, it removes any nomination when it writes its refusal. A pod that may not
    preempt (``Never``) keeps its nomination, so it does not count. Source: ``schedule_one.go`` and ``preemption.go`` of
    Kubernetes 1.35.
    """
    return bool(pod.status.nominated_node_name) and pod.spec.preemption_policy != "Never"


def scheduler_says(pod: Pod, refused: str | None) -> Reason:
    """Return the reason to show on a pod that its scheduler has not bound.

    ``refused`` is the scheduler's message; None if it has written none.
    """
    if refused is None:
        group = messages.shown(pod.pod_group)
        if pod.pod_group and pod.unscheduled is not None:
            return Reason(Cause.SCHEDULER, f"The scheduler finds no room for another pod of PodGroup {group}.")
        scheduler = f"Scheduler {pod.spec.scheduler_name[:63]!r}" if pod.spec.scheduler_name else "The scheduler"
        text = f"{scheduler} has not bound pod {pod.metadata.name}. If there is no such scheduler, delete the pod."
        if pod.pod_group:
            text += (
                f" The scheduler tries no pod of PodGroup {group} while one of them has a scheduling gate or no claim, "
                "or while fewer than its minCount exist that have not ended."
            )
        return Reason(Cause.SCHEDULER, text)
    why = _stable(refused) or "it does not say why"
    return Reason(Cause.SCHEDULER, f"The scheduler finds no room for pod {pod.metadata.name} on its nodes: {why}.")


def _stable(message: str) -> str:
    """Return a scheduler's message without the numbers of nodes.

    These numbers, as in ``0/5 nodes are available``, change with every event.
    """
    text = re.sub(r"^\d+/\d+ nodes are available: ", "", message[:1024]).partition(" preemption:")[0]
    text = text.partition(". ")[0].partition(" still not schedulable")[0]
    causes = {re.sub(r"^\d+ (?=[a-zA-Z])", "", cause.strip(" .")) for cause in text.split(", ")}
    return ", ".join(sorted(causes - {""}))  # the scheduler sorts them by text, counts included


def not_known(gated: Iterable[tuple[Member, ClaimRecord]], picture: Picture) -> Reason | None:
    """Return which data are missing to check gated pods' claims; None if none.

    A new leader has not assessed the GPUs of any machine yet, and has read no NICs.
    """
    members = dict(gated)
    nodes = (claim.pin.choice.node for claim in members.values() if claim.pin is not None)
    if without_tables := picture.inventory.aside.intersection(nodes):
        return Reason(Cause.NODES, f"Waiting until the GPUs of node {min(without_tables)} are assessed.")
    for member in members:
        with contextlib.suppress(WordError):  # the pod is told so when its claim is checked
            for limit in node_limits.concerning(member.wish):
                if (reason := limit.not_known(picture, member.wish)) is not None:
                    return reason
    return None


def shown(pod: Pod) -> str:
    """Return how messages name a pod: ``pod NAME``."""
    return f"pod {pod.metadata.name}"


def other_gates(pod: Pod) -> list[str]:
    """Return the names of a pod's scheduling gates that other programs must remove."""
    return [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]


def other_gate(pod: Pod, gates: list[str]) -> Reason:
    """Return the reason to show on a pod that has scheduling gates of other programs."""
    return Reason(Cause.GATE, f"Waiting until another controller removes scheduling gate {gates[0]} of {shown(pod)}.")
