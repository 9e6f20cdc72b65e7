"""What a feature has to say of the choice of a node and a set of GPUs: a ``NodeLimit``.

``decide`` and ``ranking`` call the limits of a request and know none by name; ``node_limits`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import Choice, NoPlaceError, PartChoice
from dradriver.api.claims.pins import Pin
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.records.placement import Placement
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import Reason

Choices: TypeAlias = Sequence[Choice | PartChoice]
Rank: TypeAlias = Callable[[Bools, Fleet], Choices]
"""Returns the best sets of a fleet's GPUs on some nodes, best first; raises ``NoPlaceError``."""
Search: TypeAlias = tuple[PlacementRequest, Bools]
"""A request, and the nodes to search for it: (rows,)."""


class NodeLimitError(NoPlaceError):
    """There is no place because of a limit. The message is complete: it need not name the nodes that are left out."""


class NodeLimit(Protocol):
    """The part of a feature in the placement of a single pod. Only requests that use the feature have the limit.

    Each method is one step of a decision. By default it changes nothing. ``fit`` are the nodes to search: (rows,).
    """

    def narrowed(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search:
        """Return the request and the nodes that are left; ``fit`` are nodes that the pod fits on.

        Raises:
            NoPlaceError: The request cannot be met now.
        """
        return wish, fit

    def causes(self, picture: Picture, wish: PlacementRequest, open_nodes: Bools) -> Sequence[str]:
        """Return why ``narrowed`` leaves out some of these nodes, in words."""
        return ()

    def ranked(self, picture: Picture, wish: PlacementRequest, rank: Rank, fit: Bools, fleet: Fleet) -> Choices:
        """Return the best sets of GPUs, best first; ``rank`` ranks them without this limit.

        Raises:
            NoPlaceError: There is no set.
        """
        return rank(fit, fleet)

    def preferred(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search | None:
        """Return a search whose sets come first if they are as good as the best ones; None for no preference."""
        return None

    def completed(self, picture: Picture, wish: PlacementRequest, placement: Placement) -> Placement:
        """Return a placement with what the feature of the limit adds to it."""
        return placement

    def not_known(self, picture: Picture, wish: PlacementRequest) -> Reason | None:
        """Return what the limit does not know yet and decides if a claim is right; None if it knows all."""
        return None

    def keeps(self, picture: Picture, wish: PlacementRequest, pin: Pin) -> bool:
        """Return whether a claim that is pinned like this is within the limit still, as its pod requests."""
        return True
