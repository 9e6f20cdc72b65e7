"""Rules that hold for single pods and for gangs alike: what breaks a claim, how long the scheduler is waited for."""

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
    """Return which rule a claim breaks so that the scheduler never will, or should not, allocate it; None if it may."""
    if claim.devices is not None:
        return None
    if claim.pin is None:
        return WithdrawReason.DAMAGED
    if conflicts.rivals(picture, claim):
        return WithdrawReason.TAKEN
    return None if picture.inventory.keeps(claim.pin) else WithdrawReason.GONE


def is_seated(member: Member, claim: ClaimRecord) -> bool:
    """Return whether a member of a gang has its GPUs, and a place that the scheduler keeps.

    One that a pod of higher priority put out has its GPUs still, and the claim is reserved for nobody. Once the
    scheduler was told that the barrier is off, it lets go of the pod.
    """
    is_off = claim.seat is not None and OFF in claim.seat.told
    return claim.devices is not None and member.uid in claim.users and not claim.deleting and not is_off


def freed_at(member: Member, claim: ClaimRecord, now: float) -> float | None:
    """Return when a claim that is being deleted needs help to go; None if it goes by itself.

    The scheduler lets go of one with a seat when it is told that the seat is off. One that was started anew meanwhile,
    or failed to write it, does not: it looks at no pod whose claim is being deleted (1.36.3, foreachPodResourceClaim).
    """
    if claim.seat is None:
        return None
    if OFF not in claim.seat.told or member.memory.leaving is None:
        return now
    return member.memory.leaving[1] + LET_GO_S


def patience(member: Member, deadlines: Deadlines) -> float | None:
    """Return until when to wait for a scheduler that finds no room for a pod; None while it finds some.

    What it said of the claim before it may say again, and then nothing is written: it has had the time to.
    """
    memory = member.memory
    if memory.unschedulable_at is None or is_preempting(member.pod):
        return None
    pause_s = 0.0 if memory.refused_before is None else SCHEDULER_PAUSE_S
    return memory.unschedulable_at + deadlines.unschedulable_s + pause_s


def is_preempting(pod: Pod) -> bool:
    """Return whether the scheduler has other pods end for a pod that it refused: it nominates a node for the pod.

    The controller nominates nodes, too. Where the scheduler finds no room and nobody to end, it removes a nomination in
    the same write (``schedule_one.go``, ``preemption.go``, Kubernetes 1.35), unless the pod may not preempt.
    """
    return bool(pod.status.nominated_node_name) and pod.spec.preemption_policy != "Never"


def scheduler_says(pod: Pod, refused: str | None) -> Reason:
    """Return the reason of a pod that is not bound: what its scheduler says; None for nothing."""
    if refused is None:
        group = messages.shown(pod.pod_group)
        if pod.pod_group and pod.unscheduled is not None:
            return Reason(Cause.SCHEDULER, f"the scheduler finds no room for another pod of its PodGroup {group}")
        scheduler = f"the scheduler {pod.spec.scheduler_name[:63]!r}" if pod.spec.scheduler_name else "the scheduler"
        text = f"{scheduler} has not bound the pod to its nodes; if there is no such scheduler, delete the pod"
        if pod.pod_group:
            text += (
                f"; it tries no pod of PodGroup {group} while one of them has a scheduling gate or no claim, or while "
                "fewer than its minCount are there that have not ended"
            )
        return Reason(Cause.SCHEDULER, text)
    why = _stable(refused) or "it does not say why"
    return Reason(Cause.SCHEDULER, f"the scheduler finds no room on its nodes: {why}")


def _stable(message: str) -> str:
    """Return a scheduler's message without its numbers, which change with every event: ``0/5 nodes are available``."""
    text = re.sub(r"^\d+/\d+ nodes are available: ", "", message[:1024]).partition(" preemption:")[0]
    text = text.partition(". ")[0].partition(" still not schedulable")[0]
    causes = {re.sub(r"^\d+ (?=[a-zA-Z])", "", cause.strip(" .")) for cause in text.split(", ")}
    return ", ".join(sorted(causes - {""}))  # the scheduler sorts them by text, counts included


def not_known(gated: Iterable[tuple[Member, ClaimRecord]], picture: Picture) -> Reason | None:
    """Return what is not known yet that decides if claims of gated pods are right; None if all is known.

    A leader that begins has no tables of any machine, and has read no NICs.
    """
    members = dict(gated)
    nodes = (claim.pin.choice.node for claim in members.values() if claim.pin is not None)
    if without_tables := picture.inventory.aside.intersection(nodes):
        return Reason(Cause.NODES, f"waits until the GPUs of its node {min(without_tables)} are assessed")
    for member in members:
        with contextlib.suppress(WordError):  # the pod is told so when its claim is checked
            for limit in node_limits.concerning(member.wish):
                if (reason := limit.not_known(picture, member.wish)) is not None:
                    return reason
    return None


def shown(pod: Pod) -> str:
    """Return a pod's name in messages."""
    return f"pod {pod.metadata.name}"


def other_gates(pod: Pod) -> list[str]:
    """Return the scheduling gates of others that hold a pod."""
    return [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]


def other_gate(gates: list[str]) -> Reason:
    """Return the reason of a pod that scheduling gates of others hold."""
    return Reason(Cause.GATE, f"waits for scheduling gate {gates[0]} of another controller to be lifted first")
