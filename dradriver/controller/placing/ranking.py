"""Which sets of GPUs on which nodes a pod may have, the best first; where there are none, why not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import Choice, NoPlaceError, PartChoice, Whole
from dradriver.api.vocabulary.values import PREFER_SPOT
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.pods.anti_affinity import BESIDE
from dradriver.controller.placing import nic_places, nic_refusals
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import Cause

AMONG: Final = 4  # times as many are ranked as a pod gets, so that they need not be all alike
UNKNOWN_KIND: Final = "GPUs not assessed yet"  # a new kind of machine, whose tables are being made
_RULES: Final = 3  # that a reason names
_RESERVED: Final = "; GPUs are left out that are reserved for one that has waited for longer"


def eligible(snapshot: Snapshot, wish: PlacementRequest) -> Bools:
    """Return the nodes that a pod fits on by what is free there, its channel too, and by what pods are beside it."""
    picture, fit = snapshot.picture, snapshot.eligible(wish.ask)
    if wish.rules is not None:
        fit &= picture.neighbours.allowed(wish.pod, wish.rules, snapshot.open(wish.ask))
    if (domain := picture.channels.domain_of(wish.pod)) is not None:
        fit &= picture.channels.free(domain, wish.pod)
    return fit


def rank(snapshot: Snapshot, wish: PlacementRequest, fit: Bools, *, most: int) -> Sequence[Choice | PartChoice]:
    """Return the best set of each of the best nodes, best first.

    Args:
        snapshot: The cluster.
        wish: What is wanted.
        fit: The nodes that are looked at: (rows,).
        most: Nodes that the pod may go to; several times as many are returned.

    Raises:
        NoPlaceError: There is no set; it says why in words that do not change with every event.
    """
    picture, fleet = snapshot.picture, snapshot.fleet
    reserved = _RESERVED if snapshot.is_plain and picture.inventory.reserved else ""
    if not fit.any():
        if not picture.inventory.fleet.nodes and not picture.inventory.aside:
            raise NoPlaceError("no node offers GPUs of this driver", cause=Cause.NEVER)
        causes = _causes(snapshot, wish, fit) or "none is left"
        raise NoPlaceError(f"no node with GPUs can run this pod: {causes}", cause=Cause.NODES)
    try:
        ranked = _ranked(picture, wish, fit, most=most, fleet=fleet)
        if (near := nic_places.near(wish)) is not None:
            with contextlib.suppress(NoPlaceError):
                nearer = _ranked(picture, near, fit, most=most, fleet=fleet)
                if _as_good(nearer[0], ranked[0]):
                    ranked, wish = _first_of(nearer, ranked, most), near
    except nic_refusals.NoNicsError:
        raise
    except NoPlaceError as error:
        causes = _causes(snapshot, wish, fit)
        why = f"{error.stable}; nodes left out: {causes}" if causes else error.stable
        kept = bound(picture, wish)
        why += _tainted(picture) + kept + reserved
        raise NoPlaceError(
            why if isinstance(wish.request, Whole) else why + _lacks(picture),
            cause=error.cause if error.cause is Cause.NEVER or not (kept or reserved) else Cause.RESERVED,
        ) from None

    if not wish.spot:
        return ranked
    rather = favoured(picture, wish.spot, fit)
    if not rather.any() or (rather == fit).all():
        return ranked
    with contextlib.suppress(NoPlaceError):
        first = _ranked(picture, wish, rather, most=most, fleet=fleet)
        if _as_good(first[0], ranked[0]):
            return _first_of(first, ranked, most)
    return ranked


def _first_of(
    first: Sequence[Choice | PartChoice], others: Sequence[Choice | PartChoice], most: int
) -> Sequence[Choice | PartChoice]:
    nodes = {choice.node for choice in first}
    return [*first, *[choice for choice in others if choice.node not in nodes][: max(0, most - len(first))]]


def favoured(picture: Picture, spot: str, fit: Bools) -> Bools:
    """Return those of some nodes that a pod had rather be on: (rows,).

    Args:
        picture: The cluster.
        spot: What it says of spot nodes: ``prefer`` or ``avoid``.
        fit: The nodes that it may be on: (rows,).
    """
    is_spot = picture.nodes.spot()
    rather: Bools = fit & (is_spot if spot == PREFER_SPOT else ~is_spot)
    return rather


def _as_good(one: Choice | PartChoice, best: Choice | PartChoice) -> bool:
    """Return whether a set has all that is preferred that the best one has, and its GPUs reach each other as near."""
    if isinstance(one, Choice) and isinstance(best, Choice):
        return (one.level, one.fallback) == (best.level, best.fallback)
    return True


def _ranked(
    picture: Picture, wish: PlacementRequest, fit: Bools, *, most: int, fleet: Fleet
) -> Sequence[Choice | PartChoice]:
    if wish.nics is not None and wish.nics.requests:
        return nic_places.ranked(
            picture, wish, fit, fleet, lambda rows, of: _ranked_alone(picture, wish, rows, most=most, fleet=of)
        )
    return _ranked_alone(picture, wish, fit, most=most, fleet=fleet)


def _ranked_alone(
    picture: Picture, wish: PlacementRequest, fit: Bools, *, most: int, fleet: Fleet
) -> Sequence[Choice | PartChoice]:
    if not isinstance(wish.request, Whole):
        tenant = picture.inventory.tenant(wish.claim[0])
        return fleet.rank(wish.request, eligible=fit, limit=most * AMONG, explain=False, tenant=tenant)
    # The administrator's, and no note's: they count for who has long been waiting, too.
    request = msgspec.structs.replace(wish.request, weights=picture.weights)
    return fleet.rank(request, eligible=fit, limit=most * AMONG, explain=False)


def bound(picture: Picture, wish: PlacementRequest) -> str:
    """Return which GPUs the policies file's tenants keep from a pod, as a part of a reason."""
    kept = picture.fleets.bound(wish.claim[0])
    return f"; left out are {kept}, by the policies file" if kept else ""


def _tainted(picture: Picture) -> str:
    """Return which rules taint GPUs, as a part of a reason."""
    rules = picture.offered.taint_rules.tainting()
    more = " and others" if len(rules) > _RULES else ""
    return f"; GPUs are left out that DeviceTaintRule {', '.join(rules[:_RULES])}{more} taints" if rules else ""


def _lacks(picture: Picture) -> str:
    """Return what the API server lacks that parts of GPUs need, as a part of a reason."""
    lacking = sorted(picture.inventory.lacks() & {"shares", "counters"})
    return (
        f"; the API server keeps no {' and no '.join(lacking)} in slices: Kubernetes has them from 1.36 on"
        if lacking
        else ""
    )


def any_aside(picture: Picture, fit: Bools) -> bool:
    """Return whether nothing is placed yet on some of these nodes: (rows,)."""
    aside = (picture.nodes.find(node) for node in picture.inventory.aside)
    return any(row is not None and fit[row] for row in aside)


def _causes(snapshot: Snapshot, wish: PlacementRequest, fit: Bools) -> str:
    picture, causes = snapshot.picture, list(snapshot.causes(wish.ask))
    if any_aside(picture, fit):
        causes.append(UNKNOWN_KIND)
    if wish.rules is not None:
        open_ = snapshot.open(wish.ask)
        if (open_ & ~picture.neighbours.allowed(wish.pod, wish.rules, open_)).any():
            causes.append(BESIDE)
    if (domain := picture.channels.domain_of(wish.pod)) is not None:
        causes += picture.channels.causes(domain, wish.pod, snapshot.open(wish.ask))
    return ", ".join(sorted(causes))
