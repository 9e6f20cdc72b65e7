"""The limit of spot nodes, which a pod can prefer or avoid. See ``node_limit``; the gang plan uses ``favoured``.

A *spot node* is a node that its provider can take away at any time.
"""

from __future__ import annotations

from dradriver.api.vocabulary.values import PREFER_SPOT
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing.node_limit import NodeLimit, Search
from dradriver.queue.placement_request import PlacementRequest


class SpotLimit(NodeLimit):
    """Prefers sets on spot nodes, or on other nodes, as the pod requests."""

    def preferred(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search | None:
        """Return the request, and a mask of the nodes in ``fit`` that the pod prefers.

        None if no node is preferred, or if all nodes are.
        """
        favoured_nodes = favoured(picture, wish.spot, fit)
        if not favoured_nodes.any() or (favoured_nodes == fit).all():
            return None
        return wish, favoured_nodes


def favoured(picture: Picture, spot: str, fit: Bools) -> Bools:
    """Return a mask of the nodes that a pod prefers: (rows,).

    They are the spot nodes (``prefer``) or the other nodes (``avoid``). There is one row per node.

    Args:
        picture: The cluster cache.
        spot: The pod's preference for spot nodes: ``prefer`` or ``avoid``.
        fit: A mask of the nodes that it may use: (rows,).
    """
    is_spot = picture.nodes.spot()
    favoured_nodes: Bools = fit & (is_spot if spot == PREFER_SPOT else ~is_spot)
    return favoured_nodes
