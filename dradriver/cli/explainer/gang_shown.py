"""The gang that a pod is of, as it is shown: who is there of it, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dradriver.api.base.gang_barrier_device import GO
from dradriver.api.base.pods import Pod
from dradriver.api.gangs.gang_annotations import Size
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer.model import Gang, GangPod
from dradriver.cluster.pods.gang_pods import Membership
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_plan
from dradriver.controller.steps.rules import is_seated
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.reason import Reason
from dradriver.view.terminal_text import plain


class GangPods(msgspec.Struct, frozen=True):
    """A pod's gang as it was read.

    Attributes:
        of: What the pod says of it.
        pending: All of its pods that live.
        size: How few pods it may start with, and how many it has; else why it is not known.
        done: How many of its pods have ended well.
    """

    of: Membership
    pending: PendingWorkload
    size: Size | Reason | None
    done: int


def described(scene: Scene, gang: GangPods, pod: Pod, found: Mapping[Member, Placement] | None = None) -> Gang:
    """Return a gang as it is shown.

    Args:
        scene: The cluster.
        gang: The gang.
        pod: The pod that is asked about.
        found: Places that members would get.
    """
    members, found = gang.pending.members, found or {}
    claims = {
        member: claim
        for member in members
        if (claim := scene.picture.claim_of(member.pod)) is not None and claim.owned_by(member.uid)
    }
    planned = {member: claim.planned for member, claim in claims.items() if claim.planned is not None}
    planned |= {member: place.planned for member, place in found.items() if place.planned is not None}
    at = {member: claim.pin.choice.node for member, claim in claims.items() if claim.pin is not None}
    at |= {member: place.node for member, place in found.items()}
    at |= {member: member.pod.spec.node_name for member in members if member.pod.spec.node_name}
    states = {member: state(scene, member) for member in members}
    ordered = sorted(at, key=lambda member: planned[member].index if member in planned else len(members))
    first = next(iter(planned.values()), None)
    size = gang.size if isinstance(gang.size, tuple) else None
    if scene.picture.gangs.started(gang.pending.key) and planned and size is None:
        size = (max(each.size for each in planned.values()),) * 2
    pods = tuple(
        GangPod(
            pod=plain(member.pod.metadata.name),
            state=states[member],
            node=plain(at.get(member, "")),
            rank_hint=planned[member].index if member in planned else None,
        )
        for member in members
    )
    return Gang(
        name=plain(_name(gang.of)),
        made_by=gang.of.member.made_by,
        state=_whole(scene, gang, states, size),
        here=len(members),
        least=None if size is None else size[0],
        most=None if size is None else size[1],
        seated=sum(state in ("seated", "told", "bound") for state in states.values()),
        bound=sum(state == "bound" for state in states.values()),
        nodes=tuple(map(plain, dict.fromkeys(at[member] for member in ordered))),
        reach="" if first is None else plain(first.reach),
        busbw_gbps=0.0 if first is None else first.busbw_gbps,
        rank_hint=next((each.rank_hint for each in pods if each.pod == plain(pod.metadata.name)), None),
        pods=pods,
    )


def _name(of: Membership) -> str:
    """Return what people call a gang: the name that was written, or that of what made its pods."""
    if of.wants is not None and of.wants.written is not None:
        return of.wants.written
    return of.member.identity.rpartition("-")[0] if of.member.read is None else of.member.read.name


def state(scene: Scene, member: Member) -> str:
    """Return how far one pod of a gang is."""
    if member.pod.spec.node_name:
        return "bound"
    claim = scene.picture.claim_of(member.pod)
    if claim is None or not claim.owned_by(member.uid):
        return "gated" if member.pod.gated else "lifted"
    if is_seated(member, claim):
        return "told" if claim.seat is not None and GO in claim.seat.told else "seated"
    return "planned" if member.pod.gated else "lifted"


def _whole(scene: Scene, gang: GangPods, states: Mapping[Member, str], size: Size | None) -> str:
    """Return how far a gang is, as docs/gangs.md has it."""
    if scene.picture.gangs.started(gang.pending.key):
        return "started"
    claims = [scene.picture.claim_of(member.pod) for member in states if gang_plan.has_claim(scene.picture, member)]
    if any(claim is not None and claim.deleting for claim in claims):
        return "given back"
    if claims:
        every = set(states.values())
        return "planned" if every <= {"planned", "gated"} else "seated" if every == {"seated"} else "lifted"
    return "unknown" if size is None else "gathering" if len(states) + gang.done < size[0] else "waiting"
