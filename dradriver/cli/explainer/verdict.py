"""What the controller makes of a pod: its own review and decision, over what was read once."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.request import Choice, NoPlaceError, Whole
from dradriver.api.base import affinity
from dradriver.api.base.allocating_driver import bound
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Affinity, NodeAffinity, Pod
from dradriver.api.claims.pins import Pin, claim_key
from dradriver.api.policies.model import Policies
from dradriver.cli.cluster import policies_in_force as in_force
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer import alone, gangs, happened, rooms, turns
from dradriver.cli.explainer.gangs import Read
from dradriver.cli.explainer.model import Happening, Help, Verdict
from dradriver.cli.explainer.places import given, place_of
from dradriver.cli.explainer.together import together
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.pod_demands import Where, ask_of
from dradriver.cluster.pods.volumes import Unbound
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing.decide import MOST_NODES, decide, revalidate
from dradriver.controller.placing.nic_choice import NoNicsError, figures
from dradriver.controller.steps.ending import Ending
from dradriver.controller.steps.next_step import next_step
from dradriver.controller.steps.pod_steps import Go, Keep, LetGo, Settle, Wait, Withdraw
from dradriver.controller.steps.pod_steps import Place as WantsPlace
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.queue.caps import CapError
from dradriver.queue.placement_request import PlacementRequest
from dradriver.queue.units import Member, Unit
from dradriver.view.terminal_text import plain

_HELPS: Final = 3
_FILLED: Final = 8  # nodes that are looked at for CPU and memory before they are named
_ROUNDS: Final = 8

_ENDS: Final = {  # by the controller's ``WithdrawReason``: why a promise ends that is still there
    "taken": "its GPUs were given to another claim",
    "gone": "what was promised is not offered any more, or tainted",
    "damaged": "nobody knows any more what its claim was made for",
    "overlooked": "the scheduler overlooks that there is room; the claim is made anew",
}


async def verdict(client: Client, server: ServerConfig, pod: Pod, policies: Policies | None, drivers: str) -> Verdict:
    """Return what is to be said of a pod, as far as the server lets us read.

    Args:
        client: The server's, entered.
        server: The server, for messages.
        pod: The pod.
        policies: Those that the controller follows, if the caller knows them. None reads them.
        drivers: The driver's namespace, which has them and what tenants have had; empty where nobody knows it.
    """
    key = claim_key(pod)
    unread: list[str] = []

    async def told(uid: str, about: str) -> list[Happening]:
        try:
            return await happened.events(client, server, pod.metadata.namespace, uid, about)
        except ClusterError as error:
            unread.append(str(error))
            return []

    if pod.finished or not (pod.placed or pod.static):
        events = await told(pod.metadata.uid, "pod")
        return Verdict(happened=happened.in_order([*happened.own(pod, None), *events]), unread=tuple(unread))
    if policies is None:
        followed = await in_force.read(client, server, drivers)
        policies = followed.policies
        unread += filter(None, [followed.trouble])
    own = Own(policies)
    scene = Scene(client, server, policies, own=own)
    if policies.tenants and drivers:
        await own.read(client, server, drivers)
    elif policies.queue.reservation.after_minutes and drivers:
        await own.read_reservations(client, server, drivers)
    unread += own.unread
    events, _ = await asyncio.gather(told(pod.metadata.uid, "pod"), scene.read())
    claim = alone.claim_of(scene, pod) if key is None else scene.claims.get(key)
    if claim is not None and not claim.owned_by(pod.metadata.uid):
        claim = None  # somebody else's under the same name
    if claim is not None:
        events += await told(claim.metadata.uid, "claim")
    with bound(scene.ledger):
        judged = await (alone.static(scene, pod, claim) if pod.static else _judged(scene, pod))
    return msgspec.structs.replace(
        judged,
        reason=plain(judged.reason),
        nearest=plain(judged.nearest),
        happened=happened.in_order([*happened.own(pod, claim), *events]),
        unread=tuple(dict.fromkeys([*scene.unread, *unread])),
    )


async def _judged(scene: Scene, pod: Pod) -> Verdict:
    scene.put(pod)
    key = pod.metadata.namespace, pod.metadata.name
    if not scene.whole or pod.metadata.deletion_timestamp is not None:
        return await _alone(scene, pod, None)
    if (why := scene.picture.gangs.waits(key)) and pod.gated and scene.picture.claim_of(pod) is None:
        return Verdict(reason=why.text)
    gang = await gangs.read(scene, pod)
    if gang is None:
        return await _alone(scene, pod, None)
    if scene.picture.gangs.started(gang.unit.key):
        judged = await _alone(scene, pod, gang)
        return msgspec.structs.replace(judged, gang=gangs.described(scene, gang, pod))
    return await together(scene, pod, gang)


async def _alone(scene: Scene, pod: Pod, gang: Read | None) -> Verdict:
    """Return what there is to say of a pod that is placed by itself, be it one that comes to a gang which runs."""
    if pod.template is not None and not await scene.read_templates(pod.metadata.namespace):
        return Verdict()
    await scene.read_beside([pod])
    if lacking := scene.lacking_of(pod):
        return Verdict(reason=lacking.text)
    where = await scene.volumes_of(pod)
    if isinstance(where, Unbound):
        if pod.gated and scene.picture.claim_of(pod) is None:
            return Verdict(reason=where.reason.text)
        where = ()
    unit = _unit(scene, pod, where)
    wish, told = None, ""
    try:
        wish = unit.lead.wish
    except WordError as error:
        told = str(error)
        if pod.gated:
            return Verdict(reason=told)
    if pod.metadata.deletion_timestamp is not None and not pod.spec.node_name:
        return Verdict(reason="it is being deleted, and gets no place any more")
    if not scene.whole:
        return Verdict()
    if wish is not None and wish.nics is not None:
        await scene.read_nics()
    step = next_step(unit.lead, scene.picture, 0.0)
    claim = scene.picture.claim_of(pod)
    pin = claim.pin if claim is not None and claim.owned_by(pod.metadata.uid) else None
    match step:
        case WantsPlace():
            return Verdict(reason=told) if wish is None else await _wanting(scene, unit, wish, gang)
        case Settle():
            return await _having(scene, pod, wish, pin, "")
        case Keep():
            return await _having(scene, pod, wish, pin, await _keeping(scene, wish, step.claim))
        case Withdraw():
            why = step.reason or _ENDS.get(step.cause.value, step.cause.value)
            return await _having(scene, pod, wish, pin, f"its promise ends: {why}")
        case Go() | LetGo():
            doing = "told that it may be bound" if isinstance(step, Go) else "given back, to be made anew"
            return await _having(scene, pod, wish, pin, f"its gang has started; its claim is about to be {doing}")
        case Ending():
            return await _having(scene, pod, wish, pin, step.why.text)
        case Wait():
            if step.reason or claim is None or not claim.handed_over:
                why = step.reason.text if step.reason else f"its GPUs are promised to it; {alone.said(pod)}"
                return await _having(scene, pod, wish, pin, why)
            why = f"it was handed over to the scheduler, and nothing is promised to it; {alone.said(pod)}"
            free = None if wish is None or claim.devices else await alone.free(scene, pod, wish.request)
            return msgspec.structs.replace(await _having(scene, pod, wish, pin, why), free=free)


async def _keeping(scene: Scene, wish: PlacementRequest | None, claim: ClaimRecord) -> str:
    """Return what the controller is about to do with the claim of a gated pod."""
    if wish is not None and claim.pin is not None:
        await scene.fill((claim.pin.choice.node,))
        if revalidate(scene.picture, wish, claim) is None:
            return "its claim is there and not valid any more; the controller is about to make it anew"
    return "its claim is there; the controller is about to lift its gate"


def _unit(scene: Scene, pod: Pod, where: Where = ()) -> Unit:
    return Unit(Member(pod, scene.picture.templates.of(pod), where))


async def _wanting(scene: Scene, unit: Unit, wish: PlacementRequest, gang: Read | None) -> Verdict:
    """Return what there is to say of a pod that wants a place: the one it would get, or why there is none."""
    turn = turns.turn(scene, unit)
    found = await (_decided(scene, unit, wish) if gang is None else _late(scene, unit, gang))
    if isinstance(found, CapError):  # what is free, and whose end would make a place, says nothing of it
        return Verdict(reason=str(found), turn=turn)
    fit = _fit(scene, wish)
    if isinstance(found, Placement):
        ahead = "" if turn.position == 1 else "; older pods have their turn first"
        lifted = "" if unit.lead.pod.gated else "the promise that it had has ended; "
        return Verdict(
            reason=f"{lifted}there is a place for it on {found.node} now{ahead}",
            place=place_of(found.choice, found.uuids),
            turn=turn,
        )
    if wish.shared and wish.claim in scene.picture.claims:
        return Verdict(reason=found.stable, turn=turn)  # other GPUs would be of no use to it
    if isinstance(found, NoNicsError) and wish.nics is not None:  # the same
        nodes = [scene.picture.nodes.name(row) for row in np.flatnonzero(fit).tolist()]
        return Verdict(reason=found.stable, nearest=figures(scene.picture, wish.nics, nodes), turn=turn)
    lifted = (
        ""
        if unit.lead.pod.gated
        else "the promise that it had has ended, and it can go to no other node than its own: "
    )
    return Verdict(
        reason=f"{lifted}{found.stable}",
        nearest=_nearest(scene, wish, fit, found.stable),
        free=rooms.free(scene, wish.request, fit, wish.claim[0]) if isinstance(wish.request, Whole) else None,
        helps=await _helps(scene, wish, fit),
        turn=turn,
    )


async def _decided(scene: Scene, unit: Unit, wish: PlacementRequest) -> Placement | NoPlaceError:
    """Return the controller's decision, in which others' pods count on all nodes that it names."""
    most, why = MOST_NODES, ""
    for _ in range(_ROUNDS):
        try:
            left = scene.caps.left(unit, scene.whose(unit))
            why = left.why
            placement = decide(left.snapshot, wish, most=most)
        except NoPlaceError as error:
            return error.more(why) if why else error
        if not await scene.fill(tuple(placement.hostnames)):
            return placement
        most *= 2
    return placement


async def _late(scene: Scene, unit: Unit, gang: Read) -> Placement | NoPlaceError:
    """Return the controller's decision about a pod that comes to a gang which has started: near the others."""
    lead = next(member for member in gang.unit.members if member.uid == unit.lead.uid)
    found = await gangs.places(scene, gang, Unit(lead), (lead,), least=None)
    if isinstance(found, dict):
        return found[lead]
    return found if isinstance(found, NoPlaceError) else NoPlaceError(str(found))


def _nearest(scene: Scene, wish: PlacementRequest, fit: Bools, stable: str) -> str:
    """Return what is nearest to what is wanted, where the allocator can say."""
    try:
        tenant = scene.picture.inventory.tenant(wish.claim[0])
        scene.picture.fleets.of(wish.claim[0]).rank(wish.request, eligible=fit, limit=1, tenant=tenant)
    except NoPlaceError as error:
        said = str(error)
        return "" if said in stable else said.partition(": no; ")[2] or said
    return ""


async def _helps(scene: Scene, wish: PlacementRequest, fit: Bools) -> tuple[Help, ...]:
    """Return what would make a place: claims that end, and nodes that are left out though their GPUs are free."""
    if not isinstance(wish.request, Whole):
        return tuple(rooms.parts_helps(scene, wish, fit)[:_HELPS])
    options = rooms.helps(scene, wish, wish.request, fit)[:_FILLED]
    await scene.fill([option.node for option in options])
    fit = _fit(scene, wish)
    open_ = [option for option in options if _at(scene, option.node, fit)]
    return (*open_[:_HELPS], *rooms.left_out(scene, wish, wish.request, fit)[:_HELPS])


def _fit(scene: Scene, wish: PlacementRequest) -> Bools:
    """Return the nodes that have room for a pod beside GPUs, and its channel of multi-node NVLink: (rows,)."""
    picture, domain = scene.picture, scene.picture.channels.domain_of(wish.pod)
    fit = picture.nodes.eligible(wish.ask)
    return fit if domain is None else fit & picture.channels.free(domain, wish.pod)


def _at(scene: Scene, node: str, fit: Bools) -> bool:
    row = scene.picture.nodes.find(node)
    return row is not None and bool(fit[row])


async def _having(scene: Scene, pod: Pod, wish: PlacementRequest | None, pin: Pin | None, reason: str) -> Verdict:
    """Return what there is to say of a pod that has GPUs, or is promised some."""
    if pin is None:
        claim = scene.picture.claim_of(pod)
        theirs = wish is not None and claim is not None and claim.owned_by(pod.metadata.uid) and claim.handed_over
        return Verdict(reason=reason, place=given(scene, wish.claim, wish.request) if wish and theirs else None)
    options: list[Help] = []
    if isinstance(pin.choice, Choice) and wish is not None and isinstance(wish.request, Whole):
        ask, mine = ask_of(_as_written(pod), wish.ask.key.volumes), scene.picture.node_usage.by(wish.pod)
        freed = {} if mine is None else dict([mine])
        options = rooms.better(scene, wish, pin.choice, scene.picture.nodes.eligible(ask, freed))[:_FILLED]
        await scene.fill([option.node for option in options])
        fit = scene.picture.nodes.eligible(ask, freed)
        options = [option for option in options if _at(scene, option.node, fit)][:_HELPS]
    return Verdict(reason=reason, place=place_of(pin.choice, pin.uuids), better=tuple(options))


def _as_written(pod: Pod) -> Pod:
    """Return a pod as it was before it was narrowed to its nodes: it might have gone to any other then."""
    if not affinity.is_narrowed(pod.metadata.annotations, affinity.required(pod)):
        return pod
    try:
        required = affinity.authors(pod.metadata.annotations)
    except WordError:
        return pod
    own = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=own))
