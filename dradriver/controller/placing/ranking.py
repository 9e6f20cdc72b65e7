"""Ranks sets of GPUs on nodes for a pod, the best first; says why if there are none.

``decide`` calls this module; the gang plan uses its texts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import Choice, NoPlaceError, PartChoice, Whole
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing.node_limit import Choices, NodeLimit, NodeLimitError, Rank
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import Cause

AMONG: Final = 4  # times as many nodes are ranked as a pod gets, so that they need not be all alike
UNKNOWN_KIND: Final = "GPUs not assessed yet"  # a new kind of machine, whose tables are being made
UNPLACED: Final = "GPUs on which nothing is placed"  # of a machine that is too large
_RULES: Final = 3  # that a reason names
_UNHEALTHY: Final = "; unhealthy GPUs are left out, which gputopo health lists"
_RESERVED: Final = "; GPUs are left out that are reserved for one that has waited for longer"


def eligible(snapshot: Snapshot, wish: PlacementRequest) -> Bools:
    """Return the nodes to rank for a pod: those that it fits on, (rows,).

    Nodes must have enough free resources, and the pod's rules about other pods must hold there.
    """
    picture, fit = snapshot.picture, snapshot.eligible(wish.ask)
    if wish.rules is not None:
        open_nodes, gone = snapshot.open(wish.ask), snapshot.gone_pods
        fit &= picture.neighbours.allowed(wish.pod, wish.rules, open_nodes, gone=gone)
    return fit


def rank(
    snapshot: Snapshot, wish: PlacementRequest, fit: Bools, limits: Sequence[NodeLimit] = (), *, most: int
) -> Choices:
    """Return the best set of GPUs of each of the best nodes, best first.

    Args:
        snapshot: The cluster.
        wish: What the pod requests.
        fit: The nodes to search: (rows,).
        limits: The limits of the features that the pod uses.
        most: How many nodes the pod may use. Several times as many are returned.

    Raises:
        NoPlaceError: There is no set. The message does not change with every event: it has no figures of the moment.
    """
    picture, fleet = snapshot.picture, snapshot.fleet
    # ``aside``: nodes with GPUs that are not in the fleet yet, because their kind of machine is not assessed.
    if not fit.any():
        if not picture.inventory.fleet.nodes and not picture.inventory.aside:
            raise NoPlaceError("no node offers GPUs of this driver", cause=Cause.NEVER)
        left_out = _all_causes(snapshot, wish, fit, limits) or "none is left"
        raise NoPlaceError(f"no node with GPUs can run this pod: {left_out}", cause=Cause.NODES)

    # 1. The best sets.
    try:
        ranked = _ranked(picture, wish, fit, limits, most=most, fleet=fleet)
    except NodeLimitError:
        raise  # the limit's own message is complete
    except NoPlaceError as error:
        raise _explained(snapshot, wish, fit, limits, error) from None

    # 2. The sets that a limit prefers come first if they are as good. The next limit chooses among these. ``preferred``
    #    returns a narrower search (request and nodes); None if the limit prefers nothing.
    for limit in limits:
        if (search := limit.preferred(picture, wish, fit)) is None:
            continue
        with contextlib.suppress(NoPlaceError):
            preferred = _ranked(picture, *search, limits, most=most, fleet=fleet)
            if _as_good(preferred[0], ranked[0]):
                ranked = _first_of(preferred, ranked, most)
                wish, fit = search
    return ranked


def _explained(
    snapshot: Snapshot, wish: PlacementRequest, fit: Bools, limits: Sequence[NodeLimit], error: NoPlaceError
) -> NoPlaceError:
    """Return an error of the allocator with the nodes and GPUs that it was not offered, and why."""
    picture = snapshot.picture
    left_out = _all_causes(snapshot, wish, fit, limits)
    nodes_text = f"; nodes left out: {left_out}" if left_out else ""
    kept_text = kept_for_others(snapshot, wish, fit)
    fraction_text = "" if isinstance(wish.request, Whole) else _lacks(picture)
    is_kept = bool(kept_text) and error.cause is not Cause.NEVER
    return NoPlaceError(
        f"{error.stable}{nodes_text}{unhealthy_text(picture, fit)}{_tainted(picture)}{kept_text}{fraction_text}",
        cause=Cause.RESERVED if is_kept else error.cause,
    )


def _first_of(first: Choices, others: Choices, most: int) -> Choices:
    """Return all of the first sets, filled up to ``most`` with others of other nodes."""
    nodes = {choice.node for choice in first}
    on_other_nodes = [choice for choice in others if choice.node not in nodes]
    return [*first, *on_other_nodes[: max(0, most - len(first))]]


def _as_good(choice: Choice | PartChoice, best: Choice | PartChoice) -> bool:
    """Return whether a set's GPUs are linked as well as the best set's, and as many preferences are met."""
    if isinstance(choice, Choice) and isinstance(best, Choice):
        return (choice.level, choice.fallback) == (best.level, best.fallback)
    return True


def _ranked(
    picture: Picture, wish: PlacementRequest, fit: Bools, limits: Sequence[NodeLimit], *, most: int, fleet: Fleet
) -> Choices:
    """Return the best sets of a fleet's GPUs, within the limits."""
    rank: Rank = partial(_ranked_alone, picture, wish, most)
    for limit in limits:
        rank = partial(limit.ranked, picture, wish, rank)
    return rank(fit, fleet)


def _ranked_alone(picture: Picture, wish: PlacementRequest, most: int, fit: Bools, fleet: Fleet) -> Choices:
    """Return the best sets of a fleet's GPUs, by the GPUs alone."""
    if not isinstance(wish.request, Whole):
        tenant = picture.inventory.tenant(wish.claim[0])
        return fleet.rank(wish.request, eligible=fit, limit=most * AMONG, explain=False, tenant=tenant)
    # The weights are the policies' of now, not those of when the webhook admitted the pod.
    request = msgspec.structs.replace(wish.request, weights=picture.weights)
    return fleet.rank(request, eligible=fit, limit=most * AMONG, explain=False)


def kept_for_others(snapshot: Snapshot, wish: PlacementRequest, fit: Bools) -> str:
    """Return which GPUs of some nodes are kept from a pod, as a part of a reason; empty for none.

    Partitions of tenants keep GPUs, and reservations for pods and gangs that have waited for longer.

    Args:
        snapshot: The cluster.
        wish: What the pod requests.
        fit: The nodes: (rows,).
    """
    picture = snapshot.picture
    partition = picture.fleets.bound(wish.claim[0], fit)
    partition_text = f"; left out are {partition}, by the policies file" if partition else ""
    is_reserved = snapshot.is_plain and (fit & picture.nodes.named(picture.inventory.reserved.by_node)).any()
    return partition_text + (_RESERVED if is_reserved else "")


def unhealthy_text(picture: Picture, fit: Bools) -> str:
    """Return that some nodes have unhealthy GPUs, which no pod gets, as a part of a reason; empty if none has.

    Args:
        picture: The cluster cache.
        fit: The nodes: (rows,).
    """
    return _UNHEALTHY if (fit & picture.nodes.named(picture.inventory.unhealthy)).any() else ""


def _tainted(picture: Picture) -> str:
    """Return which rules taint GPUs, as a part of a reason."""
    rules = picture.offered.taint_rules.tainting()
    more = " and others" if len(rules) > _RULES else ""
    return f"; GPUs are left out that DeviceTaintRule {', '.join(rules[:_RULES])}{more} taints" if rules else ""


def _lacks(picture: Picture) -> str:
    """Return, as a part of a reason, what fractions of GPUs need in slices and the API server does not store."""
    lacking = sorted(picture.inventory.lacks() & {"shares", "counters"})
    if not lacking:
        return ""
    return f"; the API server keeps no {' and no '.join(lacking)} in slices: Kubernetes has them from 1.36 on"


def any_aside(picture: Picture, fit: Bools) -> bool:
    """Return whether a node to be ranked is set aside: nothing is placed there until its tables are made."""
    rows = (picture.nodes.find(node) for node in picture.inventory.aside)
    return any(row is not None and fit[row] for row in rows)


def causes(
    snapshot: Snapshot, wish: PlacementRequest, limits: Sequence[NodeLimit], *, only: Bools | None = None
) -> list[str]:
    """Return why nodes are left out for a pod, in words; see ``eligible``.

    Args:
        snapshot: The cluster.
        wish: What the pod requests.
        limits: The limits of the features that the pod uses.
        only: The nodes that are looked at, (rows,); None for all.
    """
    picture, open_nodes = snapshot.picture, snapshot.open(wish.ask)
    if only is not None:
        open_nodes &= only
    found = list(snapshot.causes(wish.ask, only))
    nodes, unplaced = picture.nodes, picture.inventory.unplaced
    if only is None and unplaced and (nodes.named(unplaced) & nodes.selected(wish.ask.key)).any():
        found.append(UNPLACED)
    if wish.rules is not None:
        found += picture.neighbours.causes(wish.pod, wish.rules, open_nodes, gone=snapshot.gone_pods)
    for limit in limits:
        found += limit.causes(picture, wish, open_nodes)
    return found


def _all_causes(snapshot: Snapshot, wish: PlacementRequest, fit: Bools, limits: Sequence[NodeLimit]) -> str:
    """Return why nodes are left out for a pod, as a list in words; empty if none is."""
    unknown = [UNKNOWN_KIND] if any_aside(snapshot.picture, fit) else []
    return ", ".join(sorted([*causes(snapshot, wish, limits), *unknown]))
