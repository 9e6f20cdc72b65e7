"""The gang that a pod is of: who is there of it, how far it is, and the controller's own decision about all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.base.gang_barrier_device import GO
from dradriver.api.base.pods import Pod
from dradriver.api.gangs import gang_of_pod as gang_members
from dradriver.api.gangs.gang_annotations import Size
from dradriver.api.gangs.gang_owners import Alone
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer.model import Gang, GangPod
from dradriver.cluster.pods.gang_pods import Membership
from dradriver.cluster.pods.volumes import Unbound
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_plan
from dradriver.controller.steps.ending import Ending
from dradriver.controller.steps.gang_sizes import done_of, size_of
from dradriver.controller.steps.gang_step import (
    GATHER_S,
    GiveBack,
    Go,
    Lift,
    Plan,
    Step,
    Wait,
    gang_step,
    in_order,
    is_seated,
)
from dradriver.controller.steps.next_step import PROMISE_S, UNSCHEDULABLE_S
from dradriver.queue.units import Member, Unit
from dradriver.reason import Cause, Reason
from dradriver.view.terminal_text import plain

_ROUNDS: Final = 8


class Read(msgspec.Struct, frozen=True):
    """A pod's gang as it was read.

    Attributes:
        of: What the pod says of it.
        unit: All of its pods that live.
        size: How few pods it may start with, and how many it has; else that it is none, or why it is not known.
        done: How many of its pods have ended well.
    """

    of: Membership
    unit: Unit
    size: Size | Alone | Reason | None
    done: int


async def read(scene: Scene, pod: Pod) -> Read | None:
    """Return the gang of a pod, with what its volumes and its owner say; None for a pod that is in none."""
    picture = scene.picture
    own = picture.gangs.of((pod.metadata.namespace, pod.metadata.name))
    if own is None:
        return None
    keys = picture.gangs.pods(own.gang)
    of = picture.gangs.said(own.gang)
    owners = scene.owners()
    if (size := size_of(own.gang, of, owners)) is None:
        await owners.read()
        size = size_of(own.gang, of, owners)
    if isinstance(size, Alone) and not gang_members.must_wait(of.wants):
        picture.gangs.dissolve(own.gang)
        return None
    if of.member.read is not None and of.member.read.kind == "PodGroup":
        await scene.read_groups(own.gang[0])
    pods = [picture.pods[key] for key in keys]
    if any(each.template is not None for each in pods):
        await scene.read_templates(own.gang[0])
    await scene.read_beside(pods)
    places = await asyncio.gather(*map(scene.volumes_of, pods))
    members = []
    for each, key, where in zip(pods, keys, places, strict=True):
        member = Member(each, picture.templates.of(each), () if isinstance(where, Unbound) else where)
        member.near = own.gang[1]
        members.append((member, picture.gangs.rank(key)))
    if any(map(_wants_nics, (member for member, _ in members))):
        await scene.read_nics()
    return Read(of, Unit(*in_order(members), key=own.gang), size, done_of(picture.gangs, of, owners))


def _wants_nics(member: Member) -> bool:
    try:
        return member.wish.nics is not None
    except WordError:
        return False


def step(scene: Scene, gang: Read) -> Step:
    """Return what the controller would do for a gang that has not started, as if it had waited for more pods."""
    size = Reason(Cause.GANG, gang.size.why) if isinstance(gang.size, Alone) else gang.size
    at = partial(
        gang_step,
        gang.unit,
        scene.picture,
        size,
        done=gang.done,
        promise_s=PROMISE_S,
        unschedulable_s=UNSCHEDULABLE_S,
    )
    first = at(0.0)
    gathers = isinstance(first, Wait) and first.reason is None and gang.unit.promised_at is None
    return at(GATHER_S) if gathers else first


async def places(
    scene: Scene, gang: Read, unit: Unit, wanting: tuple[Member, ...], *, least: int | None
) -> dict[Member, Placement] | NoPlaceError | WordError:
    """Return the places that the controller would give members of a gang now, near those that have one.

    Others' pods count on all nodes that are named, as in the controller's picture. The search may cost what the
    controller's last try may, which avoids no node.

    Args:
        scene: The cluster.
        gang: The gang.
        unit: Who wants places: all of it, or one pod that comes to it.
        wanting: Those that do.
        least: With how few it may begin; None for none fewer.
    """
    why = ""
    try:
        unit.wanting, unit.least = frozenset(wanting), least or 1
        left = scene.caps.left(unit, scene.whose(unit))
        why, chosen = left.why, frozenset(wanting if unit.key == unit.lead.key else left.members)
        members = [
            member for member in gang.unit.members if member in chosen or gang_plan.has_claim(scene.picture, member)
        ]
        if unit.key == unit.lead.key:  # what those that run have of a template their claims say
            near = (m if m in chosen else gang_plan.placed(scene.picture, m.pod) for m in members)
            members = [member for member in near if member is not None]
        for _ in range(_ROUNDS):
            found = gang_plan.plan(left.snapshot, members, gang.of.wants, identity=gang.of.member.identity, least=least)
            if not await scene.fill({node for place in found.values() for node in place.hostnames}):
                break
            left = scene.caps.left(unit, scene.whose(unit))
    except (NoPlaceError, WordError) as error:
        return error.more(why) if why and isinstance(error, NoPlaceError) else error
    return found


def doing(scene: Scene, gang: Read, what: Step) -> str:
    """Return what the controller waits for, or is about to do, in words; of members that want places nothing."""
    match what:
        case Plan():
            return ""
        case Lift():
            return "the claims of its gang are there; the controller is about to lift the gates"
        case Go():
            return "all pods of its gang have their places; the controller is about to let them be bound"
        case GiveBack():
            return f"the claims of its gang are given back: {what.reason or what.cause.value}"
        case Ending():
            return what.why.text
    if what.reason is not None:
        return what.reason.text
    have = [member for member in gang.unit.members if gang_plan.has_claim(scene.picture, member)]
    seats = sum(_state(scene, member) == "seated" for member in have)
    return f"{seats} of {len(have)} pods of its gang have their places; the scheduler has yet to give the others theirs"


def described(scene: Scene, gang: Read, pod: Pod, found: Mapping[Member, Placement] | None = None) -> Gang:
    """Return a gang as it is shown.

    Args:
        scene: The cluster.
        gang: The gang.
        pod: The pod that is asked about.
        found: Places that members would get.
    """
    members, found = gang.unit.members, found or {}
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
    states = {member: _state(scene, member) for member in members}
    ordered = sorted(at, key=lambda member: planned[member].index if member in planned else len(members))
    first = next(iter(planned.values()), None)
    size = gang.size if isinstance(gang.size, tuple) else None
    if scene.picture.gangs.started(gang.unit.key) and planned and size is None:
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
        name=plain(name(gang.of)),
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


def name(of: Membership) -> str:
    """Return what people call a gang: the name that was written, or that of what made its pods."""
    if of.wants is not None and of.wants.written is not None:
        return of.wants.written
    return of.member.identity.rpartition("-")[0] if of.member.read is None else of.member.read.name


def _state(scene: Scene, member: Member) -> str:
    """Return how far one pod of a gang is."""
    if member.pod.spec.node_name:
        return "bound"
    claim = scene.picture.claim_of(member.pod)
    if claim is None or not claim.owned_by(member.uid):
        return "gated" if member.pod.gated else "lifted"
    if is_seated(member, claim):
        return "told" if claim.seat is not None and GO in claim.seat.told else "seated"
    return "planned" if member.pod.gated else "lifted"


def _whole(scene: Scene, gang: Read, states: Mapping[Member, str], size: Size | None) -> str:
    """Return how far a gang is, as docs/gangs.md has it."""
    if scene.picture.gangs.started(gang.unit.key):
        return "started"
    claims = [scene.picture.claim_of(member.pod) for member in states if gang_plan.has_claim(scene.picture, member)]
    if any(claim is not None and claim.deleting for claim in claims):
        return "given back"
    if claims:
        every = set(states.values())
        return "planned" if every <= {"planned", "gated"} else "seated" if every == {"seated"} else "lifted"
    return "unknown" if size is None else "gathering" if len(states) + gang.done < size[0] else "waiting"
