"""Places for pods whose claims have NICs of other drivers: sets of GPUs beside which their nodes have such NICs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import NEAR_PREFERRED, NEAR_REQUIRED, Choice, NoPlaceError, PartChoice, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Pin
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics.nic_inventory import Place
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing import nic_choice, nic_refusals
from dradriver.controller.placing.nic_choice import Chosen, Gpus
from dradriver.controller.placing.nic_node import Tries
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import Reason

MOST_LOOKS: Final = 8  # at so many more nodes, for NICs beside free GPUs

Choices: TypeAlias = Sequence[Choice | PartChoice]
Rank: TypeAlias = Callable[[Bools, Fleet], Choices]
"""Gives the best sets on some nodes, as a fleet has their GPUs, best first; raises ``NoPlaceError``."""


def readable(picture: Picture, wish: PlacementRequest) -> PlacementRequest:
    """Return a wish with those requests for NICs that are chosen for here.

    Raises:
        NoPlaceError: What there is of NICs is not known yet, or the pod demands what nobody chooses.
    """
    assert wish.nics is not None, "asked of such wishes"
    ask = picture.nics.readable(wish.nics)
    if ask is wish.nics:
        return wish
    if ask.near == NEAR_REQUIRED:
        raise NoPlaceError(f"{names.NEAR_NIC}: {NEAR_REQUIRED}: {ask.left[-1][1]}")
    return msgspec.structs.replace(wish, nics=ask)


def unread(picture: Picture, member: Member) -> Reason | None:
    """Return what a pod that asks for NICs waits for until it is known what there is of these; else None."""
    try:
        nics = member.wish.nics
    except WordError:
        return None
    return picture.nics.unread() if nics is not None and nics.requests else None


def asked_for(picture: Picture, wish: PlacementRequest, pin: Pin) -> bool:
    """Return whether a claim is pinned to NICs that are there, free but for it, and what its pod asks for."""
    ask = wish.nics
    assert ask is not None, "asked of such wishes"
    if {name: len(each) for name, each in pin.nics.items()} != {one.name: one.count for one in ask.requests}:
        return False
    if not ask.requests:
        return True
    node, own = pin.choice.node, {address for each in pin.nics.values() for address in each}
    if picture.inventory.pool(node) is None:
        return False
    others = {(node, nic.address) for nic in picture.nics.on(node)} - {(node, address) for address in own}
    same = nic_choice.chosen(picture, ask, node, pin.uuids, besides=wish.claim, taken=others)
    return same is not None


def near(wish: PlacementRequest) -> PlacementRequest | None:
    """Return a wish that demands what it prefers of NICs near its GPUs; None where it prefers nothing."""
    if wish.nics is not None:
        if wish.nics.near != NEAR_PREFERRED or not wish.nics.requests:
            return None
        return msgspec.structs.replace(wish, nics=msgspec.structs.replace(wish.nics, near=NEAR_REQUIRED))
    if not isinstance(wish.request, Whole) or wish.request.near_nic != NEAR_PREFERRED:
        return None
    return msgspec.structs.replace(wish, request=msgspec.structs.replace(wish.request, near_nic=NEAR_REQUIRED))


def ranked(picture: Picture, wish: PlacementRequest, fit: Bools, fleet: Fleet, rank: Rank) -> Choices:
    """Return the best sets of a wish with requests for NICs for which their nodes have NICs, best first.

    Nodes are looked at in the order of their sets, some at a time. Where a set's GPUs cannot all have what is demanded,
    as two that share the only NIC near them, others of its node may. Those that have no NICs for it are left out from
    then on, in later looks at the tenant's own fleet, too, until something of them changes.

    Args:
        picture: The cluster.
        wish: What is wanted.
        fit: The nodes that are looked at, by row.
        fleet: What is looked at of them.
        rank: Ranks sets of GPUs alone.

    Raises:
        NoNicsError: There are such sets, and not the NICs beside them, or not beside those that were looked at.
        NoPlaceError: There are no such sets.
    """
    ask = wish.nics
    assert ask is not None, "asked of such wishes"
    # Of a fleet that is not the tenant's own nothing is remembered: its GPUs are others each time.
    namespace = wish.claim[0]
    own = fleet is picture.fleets.of(namespace)
    demands, short = nic_choice.demands(ask), picture.nics.counts.short
    key = ask, wish.request, wish.requests, picture.weights, namespace, picture.fleets.views.whose(namespace)
    left = fit & (picture.nics.counts.of(ask, fit) > 0)
    if own:
        left &= ~short.of(key, left)
    whole, learnt, tries = np.array_equal(left, fit), False, Tries()
    for _ in range(MOST_LOOKS):
        try:
            choices = rank(left, fleet)
        except NoPlaceError:
            if whole:
                raise
            raise nic_refusals.refusal(picture, ask) from None
        if found := _with_nics(picture, wish, choices, tries):
            return found
        nodes = [one.node for one in choices]
        if demands:
            gpus = sum(map(len, _numbers(choices[0])))
            apart = {
                node: nic_choice.gpus_apart(picture, ask, node, fleet.free(node), gpus, tries=tries) for node in nodes
            }
            rest = [node for node in nodes if len(apart[node]) >= gpus]
            if rest:
                with contextlib.suppress(NoPlaceError):
                    if found := _with_nics(
                        picture, wish, rank(picture.nodes.named(rest), fleet.narrowed(apart)), tries
                    ):
                        return found
        looked_at = picture.nodes.named(set(nodes) - tries.starved)
        left, whole = left & ~looked_at, False
        if own and looked_at.any():
            short.add(key, looked_at)
            learnt = True
        if tries.starved:
            break
    if not left.any():
        raise nic_refusals.refusal(picture, ask)
    if not learnt:
        raise nic_refusals.unfinished(ask, "not all nodes were looked at")
    picture.version += 1  # whoever asks again is told more: from here on
    raise nic_refusals.unfinished(ask, "other nodes are looked at next")


def _with_nics(
    picture: Picture, wish: PlacementRequest, choices: Sequence[Choice | PartChoice], tries: Tries
) -> list[Choice | PartChoice]:
    """Return those sets for which their nodes have NICs."""
    ask = wish.nics
    assert ask is not None, "asked of such wishes"
    if len(ask.requests) == 1 and not ask.alike and not nic_choice.demands(ask):
        return list(choices)  # so many are free on each node, or it would not have been ranked
    return [one for one in choices if nic_choice.chosen(picture, ask, one.node, uuids(picture, wish, one), tries=tries)]


def chosen(
    picture: Picture,
    wish: PlacementRequest,
    node: str,
    gpus: Gpus,
    *,
    taken: Collection[Place] = (),
    tries: Tries | None = None,
) -> Chosen | None:
    """Return the NICs beside chosen GPUs, by the claim's requests; rather near ones where the pod prefers these.

    None where there are none; ``taken`` are some that somebody else gets, ``tries`` what is left of a whole search.
    """
    if wish.nics is None or not wish.nics.requests:
        return {}
    asks = [one.nics for one in (near(wish), wish) if one is not None and one.nics is not None]
    found = (nic_choice.chosen(picture, ask, node, gpus, taken=taken, tries=tries) for ask in asks)
    return next((one for one in found if one is not None), None)


def uuids(picture: Picture, wish: PlacementRequest, choice: Choice | PartChoice) -> dict[str, tuple[str, ...]]:
    """Return the uuids of chosen GPUs, by the claim's requests."""
    known, numbers = picture.inventory.uuids(choice.node), _numbers(choice)
    return {name: tuple(known[number] for number in each) for name, each in zip(wish.requests, numbers, strict=True)}


def _numbers(choice: Choice | PartChoice) -> list[tuple[int, ...]]:
    """Return the numbers of the chosen GPUs, by the claim's requests."""
    if isinstance(choice, Choice):
        return list(choice.containers)
    return [(part.gpu,) for parts in choice.containers for part in parts]
