"""What there is to say of a pod whose gang has not started: the controller's own step and plan for the gang."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.cli.cluster.scene import Scene
from dradriver.cli.explainer import gang_helps, gangs, rooms, turns
from dradriver.cli.explainer.decided import decided
from dradriver.cli.explainer.gangs import Read
from dradriver.cli.explainer.model import Verdict
from dradriver.cli.explainer.places import place_of
from dradriver.controller.steps.gang_step import Plan
from dradriver.queue.caps import CapError

_HELPS: Final = 3


async def together(scene: Scene, pod: Pod, gang: Read) -> Verdict:
    """Return what there is to say of a pod whose gang has not started."""
    lead = next(member for member in gang.unit.members if member.uid == pod.metadata.uid)
    shown = gangs.described(scene, gang, pod)
    try:
        wish = lead.wish
    except WordError as error:
        return Verdict(reason=str(error), gang=shown)
    step = gangs.step(scene, gang)
    if not isinstance(step, Plan):
        claim = scene.picture.claim_of(pod)
        pin = claim.pin if claim is not None and claim.owned_by(pod.metadata.uid) else None
        place = None if pin is None else place_of(pin.choice, pin.uuids)
        return Verdict(reason=gangs.doing(scene, gang, step), place=place, gang=shown)
    gang.unit.whole(step.least)
    turn = turns.turn(scene, gang.unit)
    gang.unit.wanting, gang.unit.least = frozenset(step.members), step.least
    found = await decided(scene, gang.unit, gang)
    if isinstance(found, CapError):
        return Verdict(reason=str(found), gang=shown, turn=turn)
    if isinstance(found, dict):
        own = found.get(lead)
        ahead = "" if turn.position == 1 else "; older pods have their turn first"
        return Verdict(
            reason=f"there are places for {len(found)} pods of its gang now{ahead}",
            gang=gangs.described(scene, gang, pod, found),
            place=None if own is None else place_of(own.choice, own.uuids),
            turn=turn,
        )
    fit = scene.picture.nodes.eligible(wish.ask)
    whole = wish.request if isinstance(wish.request, Whole) else None
    stable = found.stable if isinstance(found, NoPlaceError) else str(found)
    return Verdict(
        reason=stable,
        nearest=str(found).partition(": no; ")[2] if str(found) != stable else "",
        gang=msgspec.structs.replace(
            shown,
            room=gang_helps.room(scene, gang),
            helps=gang_helps.helps(scene, gang, step.members, least=step.least),
        ),
        free=None if whole is None else rooms.free(scene, whole, fit, gang.unit.key[0]),
        helps=() if whole is None else tuple(rooms.left_out(scene, wish, whole, fit)[:_HELPS]),
        turn=turn,
    )
