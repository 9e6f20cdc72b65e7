"""The limit of other drivers' claims: pods of an allocated one need a node that can use it. See ``node_limit``."""

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
    """Leaves the nodes that can use all allocated claims of other drivers that the pod names."""

    def narrowed(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search:
        """Return the nodes that can use the pod's other claims."""
        return wish, fit & picture.other_claims.allowed(wish.pod)

    def causes(self, picture: Picture, wish: PlacementRequest, open_nodes: Bools) -> Sequence[str]:
        """Return why nodes cannot use the pod's other claims."""
        return (OUT_OF_REACH,) if (open_nodes & ~picture.other_claims.allowed(wish.pod)).any() else ()

    def keeps(self, picture: Picture, wish: PlacementRequest, pin: Pin) -> bool:
        """Return whether the pod's node can still use its other claims."""
        _, fit = self.narrowed(picture, wish, picture.nodes.named([pin.choice.node]))
        return bool(fit.any())
