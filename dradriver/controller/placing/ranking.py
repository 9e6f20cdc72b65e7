"""Ranks sets of GPUs on nodes for a pod, best first, and explains if there are none.

A *fleet* is the allocator's arrays of the nodes and their free GPUs. A *limit* is a feature's limit on the choice of a
node (``node_limit``). ``decide`` calls this module; the gang plan uses its texts.

A *snapshot* is a read-only view of the cluster cache, for example without some claims.
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
from dradriver.reason import Cause, sentences

AMONG: Final = 4  # times as many nodes are ranked as a pod gets, so that they need not be all alike
UNKNOWN_KIND: Final = "GPUs not assessed yet"  # a new kind of machine, whose tables are being made
UNPLACED: Final = "GPUs that the controller cannot place pods on"  # of a machine that is too large
_RULES: Final = 3  # that a reason names
_UNHEALTHY: Final = "Unhealthy GPUs are left out, gputopo health lists them"
_RESERVED: Final = "GPUs that are reserved for a workload that has waited longer are left out"


def eligible(snapshot: Snapshot, wish: PlacementRequest) -> Bools:
    """Return a mask of the nodes on which a pod fits: (rows,).

    The nodes have enough free resources other than GPUs, and the pod's rules about other pods hold there. There is one
    row per node.
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
        fit: A mask of the nodes to search: (rows,), one row per node.
        limits: The limits of the features that the pod uses.
        most: How many nodes the placement may name. Sets of up to four times as many nodes are returned.

    Raises:
        NoPlaceError: There is no set. Its message has no numbers that change with every event.
    """
    picture, fleet = snapshot.picture, snapshot.fleet
    # ``aside``: nodes with GPUs that are not in the fleet yet, because their kind of machine is not assessed.
    if not fit.any():
        if not picture.inventory.fleet.nodes and not picture.inventory.aside:
            raise NoPlaceError("No node offers GPUs of this driver", cause=Cause.NEVER)
        left_out = _all_causes(snapshot, wish, fit, limits) or "none is left"
        raise NoPlaceError(f"No node with GPUs can run this pod: {left_out}", cause=Cause.NODES)

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
    """Return the allocator's error, with why nodes and GPUs were not offered to it.

    The allocator does not know these nodes and GPUs, so its own text cannot name them. It was offered the nodes
    ``fit``, without the nodes that ``limits`` leave out.
    """
    picture = snapshot.picture
    left_out = _all_causes(snapshot, wish, fit, limits)
    nodes_text = f"Nodes left out: {left_out}" if left_out else ""
    kept_text = kept_for_others(snapshot, wish, fit)
    fraction_text = "" if isinstance(wish.request, Whole) else _lacks(picture)
    is_kept = bool(kept_text) and error.cause is not Cause.NEVER
    return error.without_figures.more(
        nodes_text, unhealthy_text(picture, fit), _tainted(picture), kept_text, fraction_text,
        cause=Cause.RESERVED if is_kept else None,
    )  # fmt: skip


def _first_of(first: Choices, others: Choices, most: int) -> Choices:
    """Return all sets of ``first``, and after them sets of other nodes.

    Sets of ``others`` are added while there are fewer than ``most``.
    """
    nodes = {choice.node for choice in first}
    on_other_nodes = [choice for choice in others if choice.node not in nodes]
    return [*first, *on_other_nodes[: max(0, most - len(first))]]


def _as_good(choice: Choice | PartChoice, best: Choice | PartChoice) -> bool:
    """Return whether the set of GPUs in ``choice`` is as good as that in ``best``.

    The link level between the GPUs and the preferences count.

    For MIG slices and shares it is always True.
    """
    if isinstance(choice, Choice) and isinstance(best, Choice):
        return (choice.level, choice.fallback) == (best.level, best.fallback)
    return True


def _ranked(
    picture: Picture, wish: PlacementRequest, fit: Bools, limits: Sequence[NodeLimit], *, most: int, fleet: Fleet
) -> Choices:
    """Return the best sets of a fleet's GPUs on the nodes ``fit``, after all limits.

    ``most`` is how many nodes the placement may name. Sets of more nodes are returned, so that the caller can choose.
    """
    rank: Rank = partial(_ranked_alone, picture, wish, most)
    for limit in limits:
        rank = partial(limit.ranked, picture, wish, rank)
    return rank(fit, fleet)


def _ranked_alone(picture: Picture, wish: PlacementRequest, most: int, fit: Bools, fleet: Fleet) -> Choices:
    """Return the best sets of a fleet's GPUs on the nodes ``fit``, without any limit.

    ``most`` is how many nodes the placement may name. Sets of more nodes are returned, so that the caller can choose.
    """
    if not isinstance(wish.request, Whole):
        tenant = picture.inventory.tenant(wish.claim[0])
        return fleet.rank(wish.request, eligible=fit, limit=most * AMONG, explain=False, tenant=tenant)
    # The weights are the policies' of now, not those of when the webhook admitted the pod.
    request = msgspec.structs.replace(wish.request, weights=picture.weights)
    return fleet.rank(request, eligible=fit, limit=most * AMONG, explain=False)


def kept_for_others(snapshot: Snapshot, wish: PlacementRequest, fit: Bools) -> str:
    """Return as text which GPUs are kept from a pod on some nodes; or empty.

    GPUs are kept in partitions of other tenants, and by reservations for workloads that have waited longer.

    Args:
        snapshot: The cluster.
        wish: The pod's request.
        fit: A mask of the nodes: (rows,), one row per node.
    """
    picture = snapshot.picture
    partition_text = picture.fleets.bound(wish.claim[0], fit)
    is_reserved = snapshot.is_plain and (fit & picture.nodes.named(picture.inventory.reserved.by_node)).any()
    return sentences(partition_text, _RESERVED if is_reserved else "")


def unhealthy_text(picture: Picture, fit: Bools) -> str:
    """Return a sentence that unhealthy GPUs are left out; empty if these nodes have none.

    Args:
        picture: The cluster cache.
        fit: A mask of the nodes: (rows,), one row per node.
    """
    return _UNHEALTHY if (fit & picture.nodes.named(picture.inventory.unhealthy)).any() else ""


def _tainted(picture: Picture) -> str:
    """Return a sentence with the DeviceTaintRules whose GPUs are left out; empty for none."""
    rules = picture.offered.taint_rules.tainting()
    more = " and others" if len(rules) > _RULES else ""
    return f"GPUs tainted by DeviceTaintRule {', '.join(rules[:_RULES])}{more} are left out" if rules else ""


def _lacks(picture: Picture) -> str:
    """Return a sentence with the ResourceSlice fields that the API server does not store.

    Only fields that fractions of GPUs need are named. Empty if the server stores all of them.
    """
    lacking = sorted(picture.inventory.lacks() & {"shares", "counters"})
    if not lacking:
        return ""
    return f"The API server does not store {' and '.join(lacking)} in slices, Kubernetes 1.36 and later do"


def any_aside(picture: Picture, fit: Bools) -> bool:
    """Return whether no pod can be placed yet on some of these nodes.

    For a new type of machine, the controller first computes the sets of GPUs. Until then it places no pod on nodes of
    this type.

    Args:
        picture: The cluster cache.
        fit: A mask of the nodes: (rows,), one row per node.
    """
    rows = (picture.nodes.find(node) for node in picture.inventory.aside)
    return any(row is not None and fit[row] for row in rows)


def causes(
    snapshot: Snapshot, wish: PlacementRequest, limits: Sequence[NodeLimit], *, only: Bools | None = None
) -> list[str]:
    """Return texts that say why nodes are left out for a pod.

    A node can be left out by the function ``eligible`` or by a limit.

    Args:
        snapshot: The cluster.
        wish: What the pod requests.
        limits: The limits of the features that the pod uses.
        only: A mask of the nodes to explain: (rows,), one row per node; None for all.
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
    """Return why nodes are left out, as text with commas; empty if none are.

    ``limits`` leave out nodes, as do GPUs of ``fit`` that are not assessed yet.
    """
    unknown = [UNKNOWN_KIND] if any_aside(snapshot.picture, fit) else []
    return ", ".join(sorted([*causes(snapshot, wish, limits), *unknown]))
