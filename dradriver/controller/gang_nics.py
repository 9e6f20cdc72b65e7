"""NICs for the pods of a gang: places have enough of them, and each pod gets others than those before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from dradriver.allocator.request import NEAR_REQUIRED
from dradriver.api.errors import WordError
from dradriver.api.nics import NicAsk
from dradriver.cluster.nics import Place
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.picture import Picture
from dradriver.controller import nic_choice, nic_places
from dradriver.controller.nic_choice import Chosen, Gpus, NoNicsError
from dradriver.queue.placement_request import PlacementRequest
from dradriver.queue.units import Member

MOST_LOOKS: Final = 8  # at plans whose nodes have enough NICs, and not beside the plan's GPUs


class ShortError(NoNicsError):
    """A plan is nothing because of some of its nodes.

    Attributes:
        nodes: They.
        ask: What they have too little for.
    """

    def __init__(self, error: NoNicsError, nodes: Collection[str], ask: NicAsk) -> None:
        super().__init__(str(error), stable=error.stable)
        self.nodes, self.ask = nodes, ask


def asked(picture: Picture, wishes: Sequence[PlacementRequest]) -> NicAsk | None:
    """Return what those pods of a gang ask of NICs that ask for some; None where none does.

    Raises:
        NoPlaceError: What there is of NICs is not known yet.
        WordError: They ask for different NICs.
    """
    every = {nic_places.readable(picture, wish).nics for wish in wishes if wish.nics is not None}
    found = {ask for ask in every if ask is not None and ask.requests}
    if len(found) > 1:
        raise WordError(
            "the pods of the gang ask for different NICs beside their GPUs: give them one ResourceClaimTemplate"
        )
    return found.pop() if found else None


def column(picture: Picture, ask: NicAsk, fit: Bools) -> Ints:
    """Return how many NICs each of some nodes has for such pods: (rows, 1); none where it has too few for one.

    Where they must be near GPUs only those count that are near any: else a plan would be made on nodes without.
    """
    return picture.nics.counts.of(ask, fit, every=True)[:, np.newaxis]


def told(members: Sequence[Member]) -> str:
    """Return what pods of a gang want beside their GPUs, as a part of a reason."""
    asks = (member.wish.nics for member in members)
    ask = next((ask for ask in asks if ask is not None and ask.requests), None)
    if ask is None:
        return ""
    return f"; a pod wants {nic_choice.wanted(ask)} {'near' if ask.near == NEAR_REQUIRED else 'beside'} its GPUs"


def chosen(picture: Picture, placed: Mapping[Member, tuple[str, Gpus]]) -> dict[Member, Chosen]:
    """Return the NICs of each member, given its node and its GPUs by the claim's requests.

    Raises:
        ShortError: Some members cannot have them beside their GPUs.
    """
    out: dict[Member, Chosen] = {}
    short: dict[str, NicAsk] = {}
    taken: set[Place] = set()
    for member, (node, gpus) in placed.items():
        if member.wish.nics is None:
            continue
        wish = nic_places.readable(picture, member.wish)
        found = nic_places.chosen(picture, wish, node, gpus, taken=taken)
        if found is None:
            assert wish.nics is not None, "it asks for some"
            short[node] = wish.nics
            continue
        out[member] = found
        taken |= {(node, address) for each in found.values() for address in each}
    if short:  # all of them at once: each would cost a plan of its own
        ask = next(iter(short.values()))
        raise ShortError(nic_choice.refusal(picture, ask), tuple(short), ask)
    return out
