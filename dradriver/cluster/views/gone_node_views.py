"""Views (for people) of nodes whose node agent is gone.

The nodes' machines are not known, but the pods on their GPUs are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.claims.pins import Claim
from dradriver.cluster.gpus import gone_agents
from dradriver.cluster.views.holder_names import Hold, Holder, held_by
from dradriver.topology.natural import natural

AGENT_GONE = "agent gone"
"""How such a node is called."""


class GoneNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose agent is gone.

    Attributes:
        name: The node's name.
        gpus: The devices that claims use there, each with its users, in natural order.
    """

    name: str
    gpus: tuple[tuple[str, tuple[Holder, ...]], ...]

    @property
    def why(self) -> str:
        """Return a sentence for people: why the node's agent counts as gone."""
        held = f"claims have {len(self.gpus)} of its devices"
        return f"{AGENT_GONE}: the node has no ResourceSlice of {names.DRIVER}, and {held}"


def published(pieces: Iterable[ResourceSlice]) -> frozenset[str]:
    """Return the nodes that have a ResourceSlice of this driver in ``pieces``.

    The node's set of slices need not be complete.
    """
    return frozenset(piece.spec.pool.name for piece in pieces if piece.spec.driver == names.DRIVER)


def views(
    pieces: Iterable[ResourceSlice], claims: Iterable[Claim], *, is_node: Callable[[str], bool]
) -> list[GoneNode]:
    """Return the views of nodes whose agent is gone, in natural order of their names.

    Args:
        pieces: Slices of any driver.
        claims: Claims of all namespaces.
        is_node: Returns whether the cluster has a node of that name.
    """
    has_slices = published(pieces).__contains__
    devices: dict[tuple[str, str], None] = {}
    holding: list[Claim] = []
    for claim in claims:
        if own := tuple(gone_agents.held_by_any(claim, has_slices)):
            devices |= dict.fromkeys(own)
            holding.append(claim)
    found = gone_agents.gone(devices, has_slices=has_slices, is_node=is_node)
    return [_view(name, found[name], holding) for name in sorted(found, key=natural)]


def _view(name: str, devices: Collection[str], claims: Iterable[Claim]) -> GoneNode:
    holders: dict[str, list[Holder]] = {device: [] for device in devices}
    for _, device, holder in held_by(claims, {}).get(name, ()):
        if device in holders and holder.hold is Hold.ALLOCATED:
            holders[device].append(holder)
    return GoneNode(name=name, gpus=tuple((one, tuple(holders[one])) for one in sorted(devices, key=natural)))
