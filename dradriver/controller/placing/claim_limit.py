"""The limit of other drivers' claims: a pod with an allocated claim needs a node for it. See ``node_limit``.

The allocation of a claim says which nodes can use its devices. A *pin* is the node and the devices that the controller
chose for a claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dradriver.api.claims.pins import Pin
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing.node_limit import NodeLimit, Search
from dradriver.queue.placement_request import PlacementRequest

OUT_OF_REACH: Final = "out of reach of another claim of the pod"


class OtherClaimLimit(NodeLimit):
    """Keeps only nodes that can use the pod's allocated claims of other drivers."""

    def narrowed(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search:
        """Return the unchanged request, and a mask of nodes that can use the other claims.

        ``fit`` is a mask of the nodes on which the pod fits.
        """
        return wish, fit & picture.other_claims.allowed(wish.pod)

    def causes(self, picture: Picture, wish: PlacementRequest, open_nodes: Bools) -> Sequence[str]:
        """Return why some of ``open_nodes`` cannot use the pod's claims of other drivers."""
        return (OUT_OF_REACH,) if (open_nodes & ~picture.other_claims.allowed(wish.pod)).any() else ()

    def keeps(self, picture: Picture, wish: PlacementRequest, pin: Pin) -> bool:
        """Return whether the pod's node can still use its other claims; ``pin`` names the node."""
        _, fit = self.narrowed(picture, wish, picture.nodes.named([pin.choice.node]))
        return bool(fit.any())
