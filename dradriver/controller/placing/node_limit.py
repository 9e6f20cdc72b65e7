"""``NodeLimit``: the interface by which a feature limits the choice of a node and a set of GPUs.

``decide`` and ``ranking`` call the limits of a request and know none by name; ``node_limits`` lists them.

A *pin* is the node and the devices that the controller chose for a claim. A *fleet* is the allocator's arrays of the
nodes and their free GPUs. A *rank* function returns the best sets of GPUs, best first.
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
    """There is no place because of a node limit.

    The message says why. ``ranking`` adds no other causes to it.
    """


class NodeLimit(Protocol):
    """A feature's limit on the placement of a single pod.

    It is called only for requests that use the feature. Each method is one step of a decision, and by default changes
    nothing. ``fit`` is a mask of the nodes to search: (rows,), one row per node.
    """

    def narrowed(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search:
        """Return the request, and a mask of the nodes that the limit leaves: (rows,).

        ``fit`` has the nodes on which the pod fits. A limit may also change the request. There is one row per node.

        Raises:
            NoPlaceError: The request cannot be satisfied now.
        """
        return wish, fit

    def causes(self, picture: Picture, wish: PlacementRequest, open_nodes: Bools) -> Sequence[str]:
        """Return texts with why ``narrowed`` leaves out some of the nodes in ``open_nodes``."""
        return ()

    def ranked(self, picture: Picture, wish: PlacementRequest, rank: Rank, fit: Bools, fleet: Fleet) -> Choices:
        """Return the best sets of GPUs that keep this limit, best first.

        ``rank`` ranks sets of GPUs in ``fleet`` on the nodes ``fit``, without this limit.

        Raises:
            NoPlaceError: There is no set.
        """
        return rank(fit, fleet)

    def preferred(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search | None:
        """Return the request and nodes of a second search, for preferred sets; None for none.

        ``fit`` is a mask of the nodes to search. A preferred set of GPUs comes first if it is as good as the best set
        of the first search.
        """
        return None

    def completed(self, picture: Picture, wish: PlacementRequest, placement: Placement) -> Placement:
        """Return a chosen placement with what the feature adds, such as NICs for its GPUs."""
        return placement

    def not_known(self, picture: Picture, wish: PlacementRequest) -> Reason | None:
        """Return why a claim cannot be checked yet, because data are missing; None if it can."""
        return None

    def keeps(self, picture: Picture, wish: PlacementRequest, pin: Pin) -> bool:
        """Return whether a claim's node and devices (``pin``) still keep this limit."""
        return True
