"""Where a pod goes: from the picture of the cluster to a ``Placement``. Decides; writes nothing, waits for nothing."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence, Set
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.choice.phrases import wanted
from dradriver.allocator.request import (
    Amount,
    Choice,
    Mig,
    NoPlaceError,
    Part,
    PartChoice,
    Share,
    SharePart,
    Whole,
)
from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.claims import gang_plan_note as plans
from dradriver.api.claims import result_annotations as results
from dradriver.api.claims.pins import Key, Pin, claim_key
from dradriver.api.slices import resource_slices as slices
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived import conflicts
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.pod_demands import lasts_s, listed
from dradriver.cluster.nodes.requests import Amounts
from dradriver.cluster.pods.claim_users import MOST
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import nic_places, nic_refusals
from dradriver.controller.placing.ranking import eligible, rank
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import Cause

MOST_NODES: Final = 8  # binding slows down beyond: 126 pods/s with 8 nodes, 100 with 16, 58 with 64
ZONE: Final = "topology.kubernetes.io/zone"
FEW_NODES: Final = 3  # while many wait: 140 pods/s, a quarter less work for the scheduler than with 8


def decide(snapshot: Snapshot, wish: PlacementRequest, *, most: int = MOST_NODES) -> Placement:
    """Return the best set on the best node, with next-best nodes to fall back on.

    Args:
        snapshot: The cluster.
        wish: What is wanted.
        most: Nodes to return.

    Raises:
        NoPlaceError: Nothing fits. It says why in words that do not change with every event, unless only a few nodes
            are asked about.
    """
    picture = snapshot.picture
    if wish.shared and (claim := picture.claims.get(wish.claim)) is not None:
        return _joining(picture, wish, claim)
    if wish.nics is not None:
        wish = nic_places.readable(picture, wish)
    fit = snapshot.narrowed(eligible(snapshot, wish))
    if snapshot.is_few and not fit.any():
        raise NoPlaceError("no such node")
    if wish.nics is not None and wish.nics.requests and fit.any():
        fit = fit & (picture.nics.counts.of(wish.nics, fit) > 0)
        if not fit.any():
            raise nic_refusals.refusal(picture, wish.nics)
    if wish.shared:
        # Where there is room for all who wait for the set, if there is; it may be too much for any node.
        all_of_it = msgspec.structs.replace(wish.ask, amounts=listed(picture.claim_users.crowd(wish.claim)))
        with contextlib.suppress(NoPlaceError):
            ranked = rank(snapshot, wish, fit & snapshot.eligible(all_of_it), most=most)
            return _placement(picture, wish, ranked, most)
    shunned = picture.neighbours.shunned(picture.pods[wish.pod], fit) if wish.pod in picture.pods else fit & False
    if shunned.any():  # the scheduler would put it there only if those others are gone by then
        with contextlib.suppress(NoPlaceError):
            return _placement(picture, wish, rank(snapshot, wish, fit & ~shunned, most=most), most)
    return _placement(picture, wish, rank(snapshot, wish, fit, most=most), most)


def _joining(picture: Picture, wish: PlacementRequest, claim: ClaimRecord) -> Placement:
    """Return the placement of a pod that shares a set which others have already.

    Raises:
        NoPlaceError: It is not the set that the pod asks for, or its node cannot run the pod.
    """
    name, pin = claim.metadata.name, claim.pin
    if claim.set is None or pin is None or claim.devices is None or not isinstance(wish.request, Whole):
        raise NoPlaceError(f"its set {name} is not there yet")
    if claim.set != wish.request:
        asked, has = wanted(wish.request), wanted(claim.set)
        told = f"{has}, and this pod asks for {asked}" if asked != has else f"{has} with other wishes than this pod's"
        raise NoPlaceError(
            f"its set {name} was chosen for {told}; write the limits and annotations of the pods that have it, or "
            f"another {names.SHARED_CLAIM}"
        )
    if len(claim.users) >= MOST:
        raise NoPlaceError(f"its set {name} is in use by {MOST} pods, as many as Kubernetes lets use a claim")
    node = pin.choice.node
    pod, ask = picture.pods.get(wish.pod), wish.ask
    if pod is not None:  # for how long others have the set is none of its business
        ask = msgspec.structs.replace(ask, lasts_s=lasts_s(pod))
    own = Snapshot(picture, wish.claim[0]).without(takes=_takes(picture, [wish.pod]))
    row, fit = picture.nodes.find(node), own.eligible(ask)
    if row is None or not fit[row]:
        here = np.zeros_like(fit) if row is None else _row(fit, row)
        causes = own.causes(ask, here)
        raise NoPlaceError(
            f"its set {name} is on node {node}, which cannot run this pod: {', '.join(causes) or 'gone'}",
            cause=Cause.NODES,
        )
    return Placement(
        choice=pin.choice,
        hostnames={node: picture.nodes.hostname(node)},
        uuids=pin.uuids,
        texts=pin.texts,
        joins=claim.uid,
    )


def revalidate(picture: Picture, wish: PlacementRequest, claim: ClaimRecord) -> Placement | None:
    """Return the placement that a gated pod's claim was made for, or None where it is not valid any more.

    A crash, or a conflict between the claim's creation and the lifting of the gate, left it. It is valid while its GPUs
    are free but for it, are the devices that it is pinned to, and are what the pod asks for, on a node that can run it.
    That a better place has become free since is no reason to begin again; what the pod prefers is, if that changed.
    """
    pin = claim.pin
    row = None if pin is None else picture.nodes.find(pin.choice.node)
    if pin is None or row is None or pin.nccl != wish.nccl or (wish.shared and claim.set != wish.request):
        return None
    if not picture.inventory.keeps(pin):
        return None
    if wish.nics is not None:
        try:
            wish = nic_places.readable(picture, wish)
        except NoPlaceError:
            return None
        if not nic_places.asked_for(picture, wish, pin):
            return None
    ending = conflicts.in_the_way(picture, claim)
    gone = frozenset((wish.claim, *(key for pod in ending if (key := claim_key(pod)) is not None)))
    takes = _takes(picture, [wish.pod, *map(_key, ending)])
    snapshot = Snapshot(picture, wish.claim[0]).without(gone, takes, own=True)
    fit = eligible(snapshot, wish)
    if not (fit[row] and conflicts.fits(picture, claim)):
        return None
    try:
        if not _asked_for(snapshot, wish, pin, _row(fit, row), gone):
            return None
    except NoPlaceError:
        return None
    others: Sequence[Choice | PartChoice] = []
    with contextlib.suppress(NoPlaceError):  # it keeps what it has where that is outside its partition by now
        others = rank(snapshot, wish, fit, most=MOST_NODES)
    node = pin.choice.node
    return Placement(
        choice=pin.choice,
        hostnames=_hostnames(picture, [node, *(each.node for each in others if each.node != node)], MOST_NODES),
        uuids=pin.uuids,
        texts=pin.texts | ({} if claim.planned is None else plans.texts(claim.planned, ())),
        placed=pin.placed,
        preempts=claim.preempts,
        nics=pin.nics,
    )


def _takes(picture: Picture, pods: Iterable[Key]) -> list[tuple[str, Amounts]]:
    """Return what pods take from their nodes."""
    return [takes for takes in map(picture.node_usage.by, pods) if takes]


def _key(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.name


def _asked_for(snapshot: Snapshot, wish: PlacementRequest, pin: Pin, here: Bools, gone: Set[Key]) -> bool:
    """Return whether what a claim is pinned to is what its pod asks for, and is said of it truly.

    Args:
        snapshot: The cluster without what the claim and ending pods use.
        wish: What is asked for.
        pin: What the claim is pinned to.
        here: Its node.
        gone: The claim, and those of pods that end for it.

    Raises:
        NoPlaceError: It is not: those GPUs alone would be no place for the pod.
    """
    wish = msgspec.structs.replace(wish, nics=None)  # these were looked at
    request, choice, fleets = wish.request, pin.choice, snapshot.picture.fleets
    if tuple(pin.uuids) != wish.requests:
        return False
    if isinstance(choice, Choice):
        if not isinstance(request, Whole) or tuple(map(len, choice.containers)) != request.containers:
            return False
        pinned = snapshot.offering(fleets.alone_with(gone, pin.devices))
        same = rank(pinned, wish, here, most=MOST_NODES)[0]
        return isinstance(same, Choice) and (same.level, same.fallback) == (choice.level, choice.fallback)
    if isinstance(request, Whole):
        return False
    asked = [(each,) for each in request.amounts] if isinstance(request, Share) else list(request.profiles)
    if [len(each) for each in asked] != [len(each) for each in choice.containers]:
        return False
    parts = list(zip(itertools.chain(*asked), itertools.chain(*choice.containers), strict=True))
    for number, uuid in pin.numbers().items():  # each GPU apart: together the parts could be dealt to them otherwise
        mine = [(each, part) for each, part in parts if part.gpu == number]
        alone = msgspec.structs.replace(wish, request=_of(request, [each for each, _ in mine]))
        pinned = snapshot.offering(fleets.alone_with(gone, {(choice.node, slices.device_name(uuid))}))
        same = rank(pinned, alone, here, most=MOST_NODES)[0]
        if not isinstance(same, PartChoice) or list(map(_size, itertools.chain(*same.containers))) != [
            _size(part) for _, part in mine
        ]:
            return False
    return True


def _of(request: Share | Mig, asked: Sequence[Amount | str]) -> Share | Mig:
    """Return the same request for these amounts or profiles alone, each in a container of its own."""
    if isinstance(request, Share):
        return msgspec.structs.replace(request, amounts=tuple(each for each in asked if isinstance(each, Amount)))
    return msgspec.structs.replace(request, profiles=tuple((each,) for each in asked if isinstance(each, str)))


def _size(part: Part) -> Amount | tuple[str, int]:
    """Return what a part has of its GPU, wherever on it."""
    return part.amount if isinstance(part, SharePart) else (part.profile, part.size)


def _row(like: Bools, row: int) -> Bools:
    """Return rows of nodes of which only this one is eligible."""
    here = np.zeros_like(like)
    here[row] = True
    return here


def _placement(
    picture: Picture, wish: PlacementRequest, choices: Sequence[Choice | PartChoice], most: int
) -> Placement:
    first = choices[0]
    sliced, uuids = isinstance(wish.request, Mig), nic_places.uuids(picture, wish, first)
    nics = nic_places.chosen(picture, wish, first.node, uuids)
    assert nics is not None, "it was ranked for having them"
    return Placement(
        choice=first,
        hostnames=_hostnames(picture, [choice.node for choice in choices], most),
        uuids=uuids,
        texts=results.written(first, picture.inventory.uuids(first.node)),
        addresses=picture.inventory.addresses(first.node),
        compute=picture.inventory.compute(first.node) if sliced else {},
        placed=picture.inventory.placed(first.node) if sliced else frozenset(),
        nics=nics,
    )


def _hostnames(picture: Picture, nodes: Sequence[str], most: int) -> dict[str, str]:
    """Return the labels of the nodes that a pod may go to, the chosen one first.

    A node whose MIG placements share counters costs the scheduler tens of milliseconds for each pod that it is looked
    at for: no pod has it as next-best node, and who is placed there has no other (27 to 45 ms, Kubernetes 1.36.3).
    """
    first, *others = nodes
    if picture.inventory.counted(first):
        others = []
    every = [first, *(node for node in others if not picture.inventory.counted(node))]
    return {node: picture.nodes.hostname(node) for node in _unlike(picture, every, most)}


def _unlike(picture: Picture, nodes: Sequence[str], most: int) -> Sequence[str]:
    """Return so many of some nodes, best first, that they are not all alike.

    What the scheduler refuses a pod for on one of them, a zone's volume or a neighbour's port, it would refuse it for
    on all that are like it, and a pod that is lifted stays within its nodes. So half are the best, and the others from
    zones that these are not in, and from further down.
    """
    if len(nodes) <= most:
        return nodes
    best, rest = list(nodes[: -(-most // 2)]), list(nodes[-(-most // 2) :])
    zones = {picture.nodes.label(node, ZONE) for node in best}
    for node in rest:
        if len(best) < most and (zone := picture.nodes.label(node, ZONE)) not in zones:
            zones.add(zone)
            best.append(node)
    rest = [node for node in rest if node not in best]
    wanted = most - len(best)
    return [*best, *(rest[(i + 1) * len(rest) // wanted - 1] for i in range(wanted))]
