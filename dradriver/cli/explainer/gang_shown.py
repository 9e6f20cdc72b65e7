"""The gang of a pod as ``gputopo explain`` shows it: its pods, their states and their nodes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dradriver.api.base.gang_barrier_device import GO
from dradriver.api.base.pods import Pod
from dradriver.api.gangs.gang_annotations import Size
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.workload_names import gang_name
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
        of: The membership of one of its pods, with the gang annotations.
        pending: All pods of the gang that have not ended.
        size: The smallest number of pods that can start, and the number of all pods; or why these are not known.
        done: Number of its pods that have succeeded.
    """

    of: Membership
    pending: PendingWorkload
    size: Size | Reason | None
    done: int


def described(scene: Scene, gang: GangPods, pod: Pod, places: Mapping[Member, Placement] | None = None) -> Gang:
    """Return a pod's gang as ``gputopo explain`` shows it, with the states of its pods.

    Args:
        scene: The cluster; ``scene.picture`` is the controller's cluster cache.
        gang: The gang.
        pod: The pod that the user asks about.
        places: Places that the controller would give to members.
    """
    members, new_places = gang.pending.members, places or {}
    claims = {
        member: claim
        for member in members
        if (claim := scene.picture.claim_of(member.pod)) is not None and claim.owned_by(member.uid)
    }

    # A claim has notes of the controller: ``planned``, the gang's plan with the pod's index in the ring and the network
    # level (``reach``) that holds all pods, and ``pin``, the chosen GPUs.
    # The plan of a member, and its node: a place that it would get counts before its claim, where it runs before both.
    plans = {member: claim.planned for member, claim in claims.items() if claim.planned is not None}
    plans |= {member: place.planned for member, place in new_places.items() if place.planned is not None}
    node_of = {member: claim.pin.choice.node for member, claim in claims.items() if claim.pin is not None}
    node_of |= {member: place.node for member, place in new_places.items()}
    node_of |= {member: member.pod.spec.node_name for member in members if member.pod.spec.node_name}
    by_index = sorted(node_of, key=lambda member: plans[member].index if member in plans else len(members))

    # ``size``: the fewest and the most pods, or None if not known. A gang that has started says it by its plan.
    states = {member: state(scene, member) for member in members}
    size = gang.size if isinstance(gang.size, tuple) else None
    if scene.picture.gangs.started(gang.pending.key) and plans and size is None:
        planned_size = max(plan.size for plan in plans.values())
        size = (planned_size, planned_size)
    any_plan = next(iter(plans.values()), None)  # the network level and the bandwidth are the same in all
    pods = tuple(
        GangPod(
            pod=plain(member.pod.metadata.name),
            state=states[member],
            node=plain(node_of.get(member, "")),
            rank_hint=plans[member].index if member in plans else None,
        )
        for member in members
    )
    return Gang(
        name=plain(gang_name(gang.of)),
        made_by=gang.of.member.made_by,
        state=_gang_state(scene, gang, states, size),
        here=len(members),
        least=None if size is None else size[0],
        most=None if size is None else size[1],
        # ``allocated``: its claim has the gang barrier device. ``starting``: the barrier is open, so it may be bound.
        seated=sum(state in ("allocated", "starting", "bound") for state in states.values()),
        bound=sum(state == "bound" for state in states.values()),
        nodes=tuple(map(plain, dict.fromkeys(node_of[member] for member in by_index))),
        reach="" if any_plan is None else plain(any_plan.reach),
        busbw_gbps=0.0 if any_plan is None else any_plan.busbw_gbps,
        rank_hint=next((shown.rank_hint for shown in pods if shown.pod == plain(pod.metadata.name)), None),
        pods=pods,
    )


def state(scene: Scene, member: Member) -> str:
    """Return the placement state of one pod of a gang as ``gputopo explain`` shows it.

    ``GangPod.state`` lists the states. ``scene`` is the listed cluster.
    """
    if member.pod.spec.node_name:
        return "bound"
    claim = scene.picture.claim_of(member.pod)
    if claim is None or not claim.owned_by(member.uid):
        return "gated" if member.pod.gated else "ungated"
    if is_seated(member, claim):
        return "starting" if claim.seat is not None and GO in claim.seat.told else "allocated"
    return "planned" if member.pod.gated else "ungated"


def _gang_state(scene: Scene, gang: GangPods, states: Mapping[Member, str], size: Size | None) -> str:
    """Return the state of a gang, with the names of docs/tasks/gangs.md.

    ``scene`` is the listed cluster, ``states`` has the state of each pod. ``size`` is None while the gang's size is not
    known.
    """
    if scene.picture.gangs.started(gang.pending.key):
        return "started"
    claims = [scene.picture.claim_of(member.pod) for member in states if gang_plan.has_claim(scene.picture, member)]
    if any(claim is not None and claim.deleting for claim in claims):
        return "released"
    if claims:
        pod_states = set(states.values())
        if pod_states <= {"planned", "gated"}:
            return "planned"
        return "allocated" if pod_states == {"allocated"} else "ungated"
    if size is None:
        return "unknown"
    return "gathering" if len(states) + gang.done < size[0] else "waiting"
