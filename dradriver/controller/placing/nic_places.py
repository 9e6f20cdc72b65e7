"""Finds places for pods that request NICs of other drivers: sets of GPUs on nodes that also have the NICs.

``nic_limit`` and the gang plan call this module.

A *fleet* is the allocator's arrays of the nodes and their free GPUs. A *rank* function returns the best sets of GPUs,
best first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import NEAR_PREFERRED, NEAR_REQUIRED, NoPlaceError, Whole
from dradriver.api.base import names
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics.nic_inventory import Place
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing import chosen_gpus, nic_choice, nic_refusals
from dradriver.controller.placing.nic_choice import Chosen, Gpus
from dradriver.controller.placing.nic_node import NicSearchEffort
from dradriver.controller.placing.node_limit import Choices, Rank
from dradriver.queue.placement_request import PlacementRequest

MOST_LOOKS: Final = 8  # how often one call ranks nodes and searches their NICs


def readable(picture: Picture, wish: PlacementRequest) -> PlacementRequest:
    """Return a pod's request without NIC requests that only the scheduler can evaluate.

    Raises:
        NoPlaceError: The NICs of the cluster are not read yet. Or the pod requires near NICs, and the driver cannot
            choose all of them.
    """
    assert wish.nics is not None, "called only for requests with NICs"
    ask = picture.nics.readable(wish.nics)
    if ask is wish.nics:
        return wish
    if ask.near == NEAR_REQUIRED:
        raise NoPlaceError(f"{names.NEAR_NIC}: {NEAR_REQUIRED} is not possible: {ask.left[-1][1]}")
    return msgspec.structs.replace(wish, nics=ask)


def near(wish: PlacementRequest) -> PlacementRequest | None:
    """Return a request in which NICs near the GPUs are required, not preferred.

    Returns None if the pod does not prefer near NICs.
    """
    if wish.nics is not None:
        if wish.nics.near != NEAR_PREFERRED or not wish.nics.requests:
            return None
        return msgspec.structs.replace(wish, nics=msgspec.structs.replace(wish.nics, near=NEAR_REQUIRED))
    if not isinstance(wish.request, Whole) or wish.request.near_nic != NEAR_PREFERRED:
        return None
    return msgspec.structs.replace(wish, request=msgspec.structs.replace(wish.request, near_nic=NEAR_REQUIRED))


def ranked(picture: Picture, wish: PlacementRequest, fit: Bools, fleet: Fleet, rank: Rank) -> Choices:
    """Return the best sets of GPUs whose nodes also have the requested NICs, best first.

    The sets are ranked by their GPUs alone. Then the nodes of the best sets are searched for NICs. If they have too
    few, the next nodes are ranked and searched, at most ``MOST_LOOKS`` times. Later calls leave out nodes without the
    NICs until something changes there.

    Args:
        picture: The cluster cache.
        wish: The pod's request, which includes NICs.
        fit: A mask of the nodes to search: (rows,), one row per node.
        fleet: The GPUs to search.
        rank: Ranks sets of GPUs, without NICs.

    Raises:
        NoNicsError: Nodes were left out because they have too few NICs, and the other nodes have no set of GPUs. The
            nodes that were left out may have none, either. Or the search ended before all nodes were searched.
        NoPlaceError: No node has a set of GPUs, and no node was left out because of its NICs.
    """
    ask = wish.nics
    assert ask is not None, "called only for requests with NICs"
    namespace = wish.claim[0]
    # Only for the tenant's own fleet: another fleet has other GPUs in each call.
    can_remember = fleet is picture.fleets.of(namespace)
    # The memory of nodes with too few NICs, by all that decides which GPUs and NICs the pod may have (``whose`` is its
    # partition). A node is forgotten when something changes on it.
    short_nodes = picture.nics.counts.short
    key = ask, wish.request, wish.requests, picture.weights, namespace, picture.fleets.views.whose(namespace)
    remaining = fit & (picture.nics.counts.of(ask, fit) > 0)
    if can_remember:
        remaining &= ~short_nodes.of(key, remaining)
    has_left_out, has_learned, effort = not np.array_equal(remaining, fit), False, NicSearchEffort()

    for _ in range(MOST_LOOKS):
        try:
            choices = rank(remaining, fleet)
        except NoPlaceError:
            # If no node was left out because of its NICs, GPUs are what is missing.
            if not has_left_out:
                raise
            raise nic_refusals.refusal(picture, ask) from None
        if with_nics := _with_nics(picture, wish, choices, effort):
            return with_nics
        # Other GPUs of the same nodes may have their NICs.
        if with_nics := _with_other_gpus(picture, wish, choices, fleet, rank, effort):
            return with_nics

        # No node of ``choices`` has the NICs, or it was not searched to the end. Only those that were searched are left
        # out from now on.
        searched = picture.nodes.named({choice.node for choice in choices} - effort.cut_short)
        remaining, has_left_out = remaining & ~searched, True
        if can_remember and searched.any():
            short_nodes.add(key, searched)
            has_learned = True
        if effort.cut_short:
            break

    if not remaining.any():
        raise nic_refusals.refusal(picture, ask)
    if not has_learned:
        raise nic_refusals.unfinished(ask, "Not all nodes were tried")
    # A later call continues with other nodes. The new version makes those who wait for a change call again.
    picture.version += 1
    raise nic_refusals.unfinished(ask, "Other nodes are tried next")


def _with_other_gpus(
    picture: Picture, wish: PlacementRequest, choices: Choices, fleet: Fleet, rank: Rank, effort: NicSearchEffort
) -> Choices:
    """Return sets of other GPUs with NICs on the same nodes; empty if there are none.

    The GPUs of a choice may share the only NIC near them, while other GPUs of the same node have one NIC each.

    Args:
        picture: The cluster cache.
        wish: The pod's request.
        choices: Sets of GPUs that were ranked without NICs.
        fleet: The GPUs to search.
        rank: Ranks sets of GPUs, without NICs.
        effort: Limits the search for NICs.
    """
    ask = wish.nics
    if ask is None or not nic_choice.demands(ask):
        return []
    gpus = sum(map(len, chosen_gpus.numbers(choices[0])))
    apart = {
        choice.node: nic_choice.gpus_apart(picture, ask, choice.node, fleet.free(choice.node), gpus, effort=effort)
        for choice in choices
    }
    nodes = [node for node, numbers in apart.items() if len(numbers) >= gpus]
    if not nodes:
        return []
    try:
        other_choices = rank(picture.nodes.named(nodes), fleet.narrowed(apart))
    except NoPlaceError:
        return []
    return _with_nics(picture, wish, other_choices, effort)


def _with_nics(picture: Picture, wish: PlacementRequest, choices: Choices, effort: NicSearchEffort) -> Choices:
    """Return the choices among ``choices`` whose nodes have the requested NICs for their GPUs.

    ``effort`` limits the search.
    """
    ask = wish.nics
    assert ask is not None, "called only for requests with NICs"
    if len(ask.requests) == 1 and not ask.alike and not nic_choice.demands(ask):
        # Any free NICs do, and nodes with fewer than requested were not ranked.
        return choices
    return [
        choice
        for choice in choices
        if nic_choice.chosen(picture, ask, choice.node, chosen_gpus.uuids(picture, wish, choice), effort=effort)
    ]


def chosen(
    picture: Picture,
    wish: PlacementRequest,
    node: str,
    gpus: Gpus,
    *,
    taken: Collection[Place] = (),
    effort: NicSearchEffort | None = None,
) -> Chosen | None:
    """Return the NICs for chosen GPUs, near ones if the pod prefers these.

    Args:
        picture: The cluster cache.
        wish: The pod's request.
        node: The node of the GPUs.
        gpus: The chosen GPUs.
        taken: NICs that count as taken.
        effort: The remaining effort of a larger search.

    Returns:
        The PCI addresses by the name of the claim's request; empty if the pod requests no NICs; None if the node does
            not have them.
    """
    if wish.nics is None or not wish.nics.requests:
        return {}
    for alternative in (near(wish), wish):
        if alternative is None or alternative.nics is None:
            continue
        nics = nic_choice.chosen(picture, alternative.nics, node, gpus, taken=taken, effort=effort)
        if nics is not None:
            return nics
    return None
