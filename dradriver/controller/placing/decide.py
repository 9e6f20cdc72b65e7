"""Decides where a single pod goes: from the cluster cache to a ``Placement``. Writes nothing and waits for nothing.

A ``Placement`` has one set of GPUs, and next-best nodes in addition to its node. The scheduler may refuse the node, for
example for a volume. A pod's node affinity cannot be made wider once its gate is removed. So the affinity names the
next-best nodes, too, and the controller can make the pod's claim again for one of them.

A *pin* is the node and the devices that an existing claim names. ``plan`` calls this module.

A *snapshot* is a read-only view of the cluster cache, for example without some claims. A *choice* is the GPUs, or
fractions of GPUs, of one node that the allocator chose.
"""

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
from dradriver.api.claims import gang_plan_note, result_annotations
from dradriver.api.claims.pins import Device, Key, Pin, claim_key
from dradriver.api.slices import resource_slices
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived import conflicts
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.pod_demands import lasts_s, listed
from dradriver.cluster.nodes.pod_resources import Amounts
from dradriver.cluster.pods.claim_users import MOST
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import chosen_gpus, node_limits
from dradriver.controller.placing.node_limit import NodeLimit
from dradriver.controller.placing.ranking import eligible, rank
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import Cause

MOST_NODES: Final = 8  # binding slows down beyond: 126 pods/s with 8 nodes, 100 with 16, 58 with 64
ZONE: Final = "topology.kubernetes.io/zone"
FEW_NODES: Final = 3  # while many wait: 140 pods/s, a quarter less work for the scheduler than with 8


def decide(snapshot: Snapshot, wish: PlacementRequest, *, most: int = MOST_NODES) -> Placement:
    """Return the best placement of a single pod.

    It has the best set of GPUs on the best node, and other nodes that the pod may also use. A pod that shares a claim
    which exists gets the GPUs of that claim.

    Args:
        snapshot: The cluster.
        wish: The pod's request.
        most: How many nodes the placement may name.

    Raises:
        NoPlaceError: No place is free. The message has no figures that change with every event. If only a few nodes
            were asked (``Snapshot.is_few``), the message can be only "No such node".
    """
    picture = snapshot.picture
    if wish.shared and (claim := picture.claims.get(wish.claim)) is not None:
        return _joining(picture, wish, claim)

    # 1. The nodes that the pod fits on, by resources, (anti-)affinity and the limits of the features that it uses. A
    #    limit can leave out nodes, and can change the request: NICs that only the scheduler can judge are dropped.
    limits = node_limits.concerning(wish)
    fit = snapshot.narrowed(eligible(snapshot, wish))
    for limit in limits:
        wish, fit = limit.narrowed(picture, wish, fit)

    # If no node fits, the search below would look for the causes on all nodes. A caller that asks about a few nodes
    # only tries whether they have a place, so it does not need the causes.
    if snapshot.is_few and not fit.any():
        raise NoPlaceError("No such node")

    # 2. For a shared set, a node with room for all pods that wait for it. All together may be too many for any node.
    #    ``crowd`` is the sum of what these pods take of CPU, memory and other resources.
    if wish.shared:
        ask_of_all = msgspec.structs.replace(wish.ask, amounts=listed(picture.claim_users.crowd(wish.claim)))
        with contextlib.suppress(NoPlaceError):
            return _placement(snapshot, wish, fit & snapshot.eligible(ask_of_all), limits, most)

    # 3. A node without pods that the scheduler would have to wait for: they exclude this pod until they have ended. If
    #    the cluster cache does not have this pod, it is excluded from no node (``fit & False``).
    excluding = picture.neighbours.excluding(picture.pods[wish.pod], fit) if wish.pod in picture.pods else fit & False
    if excluding.any():
        with contextlib.suppress(NoPlaceError):
            return _placement(snapshot, wish, fit & ~excluding, limits, most)

    # 4. Any node.
    return _placement(snapshot, wish, fit, limits, most)


def _joining(picture: Picture, wish: PlacementRequest, claim: ClaimRecord) -> Placement:
    """Return the placement of a pod that joins others on a shared set of GPUs.

    Raises:
        NoPlaceError: The set is not allocated yet, differs from the pod's request, or has too many users. Or its node
            cannot run the pod.
    """
    # 1. The set. ``claim.set`` is the request that it was chosen for, ``pin`` has its GPUs, and ``devices`` is None
    #    until the scheduler has allocated it.
    name, pin = claim.metadata.name, claim.pin
    if claim.set is None or pin is None or claim.devices is None or not isinstance(wish.request, Whole):
        raise NoPlaceError(f"The shared claim {name} is not allocated yet")
    if claim.set != wish.request:
        pod_text, set_text = wanted(wish.request), wanted(claim.set)
        difference = (
            f"{set_text}, this pod requests {pod_text}"
            if pod_text != set_text
            else f"{set_text} with other annotations than this pod's"
        )
        raise NoPlaceError(
            f"The shared claim {name} was chosen for {difference}. Write the limits and annotations of the pods that "
            f"use it, or another {names.SHARED_CLAIM}"
        )
    if len(claim.users) >= MOST:
        raise NoPlaceError(f"The shared claim {name} is in use by {MOST} pods, the limit of Kubernetes")

    # 2. The node, without what is assumed for this pod there already.
    node = pin.choice.node
    pod, ask = picture.pods.get(wish.pod), wish.ask
    if pod is not None:
        # Only this pod's own time counts: the request of a shared set has none.
        ask = msgspec.structs.replace(ask, lasts_s=lasts_s(pod))
    snapshot = Snapshot(picture, wish.claim[0]).without(pod_usage=_usage(picture, [wish.pod]))
    row, fit = picture.nodes.find(node), snapshot.eligible(ask)
    if row is None or not fit[row]:
        rows = np.zeros_like(fit) if row is None else _only_row(fit, row)
        causes = snapshot.causes(ask, rows)
        raise NoPlaceError(
            f"The shared claim {name} is on node {node}, which cannot run this pod: {', '.join(causes) or 'gone'}",
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
    """Return the placement of a gated pod's claim if it is still valid; else None.

    The controller creates the claim and then removes the gate. If it crashes or meets a conflict in between, a gated
    pod has a claim. Its placement is valid if all of these hold:

    * Its GPUs still exist, and no other claim uses them.
    * They are what the pod requests, with its present preferences.
    * The node can run the pod.

    The placement stays valid if a better place has become free.
    """
    # 1. The claim was made for this request. Its pin names the node, the GPUs and the NICs. Pods that share the claim
    #    must all make the request that it was chosen for (``claim.set``).
    pin = claim.pin
    row = None if pin is None else picture.nodes.find(pin.choice.node)
    if pin is None or row is None or pin.nccl != wish.nccl or (wish.shared and claim.set != wish.request):
        return None

    #    The GPUs still exist. A ``NodeLimit`` can add something to a claim, such as NICs, and must still accept that.
    if not picture.inventory.keeps(pin):
        return None
    limits = node_limits.concerning(wish)
    if not all(limit.keeps(picture, wish, pin) for limit in limits):
        return None

    # 2. The node can run the pod, and the GPUs are what it requests. The snapshot is the cluster without the claim
    #    itself, and without the pods that end for it. ``are_own``: the claim is the pod's own, so the pod may have its
    #    GPUs even if they are reserved for another workload by now.
    ending = conflicts.in_the_way(picture, claim)
    ending_claims = (key for pod in ending if (key := claim_key(pod)) is not None)
    released_claims = frozenset((wish.claim, *ending_claims))
    released_usage = _usage(picture, [wish.pod, *map(_key, ending)])
    snapshot = Snapshot(picture, wish.claim[0]).without(released_claims, released_usage, are_own=True)
    fit = eligible(snapshot, wish)
    if not (fit[row] and conflicts.fits(picture, claim)):  # ``fits``: no other claim has these GPUs or NICs
        return None
    try:
        if not _asked_for(snapshot, wish, pin, _only_row(fit, row), released_claims):
            return None
    except NoPlaceError:
        return None

    # 3. The next-best nodes, as they are now. There may be none, for example if the limits do not even allow the
    #    claim's own node by now, because the tenant's partition has changed. The claim stays valid without them.
    node = pin.choice.node
    other_nodes: list[str] = []
    with contextlib.suppress(NoPlaceError):
        for limit in limits:
            wish, fit = limit.narrowed(picture, wish, fit)
        ranked = rank(snapshot, wish, fit, limits, most=MOST_NODES)
        other_nodes = [choice.node for choice in ranked if choice.node != node]
    return Placement(
        choice=pin.choice,
        hostnames=usable_hostnames(picture, wish, [node, *other_nodes], MOST_NODES),
        uuids=pin.uuids,
        texts=pin.texts | ({} if claim.planned is None else gang_plan_note.texts(claim.planned, ())),
        placed=pin.placed,
        preempts=claim.preempts,
        nics=pin.nics,
    )


def _usage(picture: Picture, pods: Iterable[Key]) -> list[tuple[str, Amounts]]:
    """Return the resources other than GPUs that pods use of their nodes.

    There is a tuple of node and amounts for each pod that uses some.
    """
    return [usage for usage in map(picture.node_usage.by, pods) if usage]


def _key(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.name


def _asked_for(
    snapshot: Snapshot, wish: PlacementRequest, pin: Pin, only_node: Bools, released_claims: Set[Key]
) -> bool:
    """Return whether the GPUs of a claim are what its pod requests.

    The allocator is asked for a place while only these GPUs are free. It must find a place with the link level and the
    preferences that the claim states.

    Args:
        snapshot: The cluster as if the claim and the ending pods used nothing.
        wish: The pod's request.
        pin: The GPUs of the claim.
        only_node: A mask that is True for the node of the claim only: (rows,), one row per node.
        released_claims: The claim, and the claims of pods that end for it.

    Raises:
        NoPlaceError: The pod would have no place on these GPUs.
    """
    if tuple(pin.uuids) != wish.requests:
        return False
    request, choice = wish.request, pin.choice
    if isinstance(choice, Choice):
        if not isinstance(request, Whole) or tuple(map(len, choice.containers)) != request.containers:
            return False
        best = _best_on(snapshot, wish, pin.devices, only_node, released_claims)
        return isinstance(best, Choice) and (best.level, best.fallback) == (choice.level, choice.fallback)
    if isinstance(request, Whole):
        return False
    return _fractions_asked_for(snapshot, wish, request, pin, choice, only_node, released_claims)


def _fractions_asked_for(
    snapshot: Snapshot,
    wish: PlacementRequest,
    request: Share | Mig,
    pin: Pin,
    choice: PartChoice,
    only_node: Bools,
    released_claims: Set[Key],
) -> bool:
    """Return whether the MIG slices or shares of a claim are what its pod requests.

    Each GPU of the claim is checked alone: the allocator is asked for the fractions on it while only this GPU is free.
    It must choose fractions of the same size.

    Args:
        snapshot: The cluster as if the claim and the ending pods used nothing.
        wish: The pod's request.
        request: The fractions that ``wish`` requests.
        pin: The GPUs of the claim.
        choice: The fractions of the claim.
        only_node: A mask that is True for the claim's node only: (rows,), one row per node.
        released_claims: Claims that count as gone.
    """
    if isinstance(request, Share):
        requested: list[tuple[Amount | str, ...]] = [(amount,) for amount in request.amounts]
    else:
        requested = list(request.profiles)
    if list(map(len, requested)) != list(map(len, choice.containers)):
        return False
    pairs = list(zip(itertools.chain(*requested), itertools.chain(*choice.containers), strict=True))
    # Each GPU is checked alone. Together the allocator could distribute the fractions differently among them.
    for number, uuid in pin.numbers().items():
        on_gpu = [(fraction, allocated) for fraction, allocated in pairs if allocated.gpu == number]
        gpu_request = _limited_to(request, [fraction for fraction, _ in on_gpu])
        gpu_wish = msgspec.structs.replace(wish, request=gpu_request)
        device = (choice.node, resource_slices.device_name(uuid))
        best = _best_on(snapshot, gpu_wish, {device}, only_node, released_claims)
        if not isinstance(best, PartChoice):
            return False
        best_sizes = list(map(_size, itertools.chain(*best.containers)))
        if best_sizes != [_size(allocated) for _, allocated in on_gpu]:
            return False
    return True


def _best_on(
    snapshot: Snapshot, wish: PlacementRequest, devices: Set[Device], here: Bools, released_claims: Set[Key]
) -> Choice | PartChoice:
    """Return the best choice for a pod while only some devices are free.

    The limits of features are not applied.

    Args:
        snapshot: The cluster.
        wish: The pod's request.
        devices: The devices that count as free.
        here: A mask of the nodes to search: (rows,), one row per node.
        released_claims: Claims whose devices do not count as used.

    Raises:
        NoPlaceError: There is no choice.
    """
    only_these = snapshot.offering(snapshot.picture.fleets.alone_with(released_claims, devices))
    return rank(only_these, wish, here, most=MOST_NODES)[0]


def _limited_to(request: Share | Mig, fractions: Sequence[Amount | str]) -> Share | Mig:
    """Return a copy of a request that asks for other fractions.

    ``fractions`` has an amount or a MIG profile for each container. Everything else stays as in ``request``.
    """
    if isinstance(request, Share):
        amounts = tuple(amount for amount in fractions if isinstance(amount, Amount))
        return msgspec.structs.replace(request, amounts=amounts)
    profiles = tuple((profile,) for profile in fractions if isinstance(profile, str))
    return msgspec.structs.replace(request, profiles=profiles)


def _size(part: Part) -> Amount | tuple[str, int]:
    """Return the size of a fraction, to compare it with another one.

    For a share it is the amount, for MIG slices the profile and their number.
    """
    return part.amount if isinstance(part, SharePart) else (part.profile, part.size)


def _only_row(like: Bools, row: int) -> Bools:
    """Return a mask that is True for one node only: (rows,).

    ``row`` is the index of the node. The mask is as long as the mask ``like``. There is one row per node.
    """
    rows = np.zeros_like(like)
    rows[row] = True
    return rows


def _placement(
    snapshot: Snapshot, wish: PlacementRequest, fit: Bools, limits: Sequence[NodeLimit], most: int
) -> Placement:
    """Return the placement with the best set of GPUs on some nodes, and alternative nodes.

    Args:
        snapshot: The cluster.
        wish: The pod's request.
        fit: A mask of the nodes to search: (rows,), one row per node.
        limits: The limits of the features that the pod uses.
        most: How many nodes the placement may name.

    Raises:
        NoPlaceError: There is no set.
    """
    picture, choices = snapshot.picture, rank(snapshot, wish, fit, limits, most=most)
    first = choices[0]
    is_mig, uuids = isinstance(wish.request, Mig), chosen_gpus.uuids(picture, wish, first)
    placement = Placement(
        choice=first,
        hostnames=usable_hostnames(picture, wish, [choice.node for choice in choices], most),
        uuids=uuids,
        texts=result_annotations.written(first, picture.inventory.uuids(first.node)),
        addresses=picture.inventory.addresses(first.node),
        compute=picture.inventory.compute(first.node) if is_mig else {},
        placed=picture.inventory.placed(first.node) if is_mig else frozenset(),
    )
    for limit in limits:
        placement = limit.completed(picture, wish, placement)
    return placement


def usable_hostnames(picture: Picture, wish: PlacementRequest, nodes: Sequence[str], most: int) -> dict[str, str]:
    """Return the hostname labels of at most ``most`` usable nodes, by node.

    ``nodes`` begins with the node of the placement; the others are alternatives, best first. The result is empty if the
    pod may use any node (``wish.open``). Two kinds of alternatives are left out:

    * Nodes outside the first node's domain, if other pods must be with this pod, or this pod with pods like itself
      (required affinity).
    * Nodes that offer MIG slices which exclude each other (by shared counters). Each costs the scheduler 27 to 45 ms
      for each pod that it considers there (measured with Kubernetes 1.36.3). If the first node is of this kind, there
      are no alternatives.
    """
    if wish.open:
        return {}  # the pod is confined to no node
    first, *others = nodes
    if picture.inventory.counted(first):
        others = []
    if (pod := picture.pods.get(wish.pod)) is not None and picture.neighbours.anchors(pod):
        stays = picture.neighbours.anchored(pod, first)
        others = [node for node in others if stays[picture.nodes.row(node)]]
    usable = [first, *(node for node in others if not picture.inventory.counted(node))]
    return {node: picture.nodes.hostname(node) for node in unlike(picture, usable, most)}


def unlike(picture: Picture, nodes: Sequence[str], most: int) -> Sequence[str]:
    """Return at most ``most`` of these nodes, chosen so that they differ.

    ``nodes`` are given best first. The scheduler may refuse a pod on a node because of a volume's zone or another pod's
    port. It then often refuses it on all similar nodes, and the pod may use no others. So only half of the result are
    the best nodes. The other half are nodes of other zones, filled up with nodes from all parts of the list.
    """
    if len(nodes) <= most:
        return nodes
    half = -(-most // 2)  # rounded up
    selected, remaining = list(nodes[:half]), list(nodes[half:])

    zones = {picture.nodes.label(node, ZONE) for node in selected}
    for node in remaining:
        if len(selected) < most and (zone := picture.nodes.label(node, ZONE)) not in zones:
            zones.add(zone)
            selected.append(node)

    remaining = [node for node in remaining if node not in selected]
    missing = most - len(selected)
    evenly_spaced = ((number + 1) * len(remaining) // missing - 1 for number in range(missing))
    return [*selected, *(remaining[index] for index in evenly_spaced)]
