"""The limit of multi-node NVLink: a pod of a ComputeDomain needs a node whose channel is free. See ``node_limit``."""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.api.claims.pins import Pin
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing.node_limit import NodeLimit, Search
from dradriver.queue.placement_request import PlacementRequest


class ChannelLimit(NodeLimit):
    """Leaves the nodes whose channel a pod may have; all nodes if its templates are for other devices."""

    def narrowed(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search:
        """Return the nodes whose channel the pod may have."""
        domain = picture.channels.domain_of(wish.pod)
        return wish, fit if domain is None else fit & picture.channels.free(domain, wish.pod)

    def causes(self, picture: Picture, wish: PlacementRequest, open_nodes: Bools) -> Sequence[str]:
        """Return why nodes have no channel for the pod."""
        domain = picture.channels.domain_of(wish.pod)
        return () if domain is None else picture.channels.causes(domain, wish.pod, open_nodes)

    def keeps(self, picture: Picture, wish: PlacementRequest, pin: Pin) -> bool:
        """Return whether the pod may still have the channel of its node."""
        _, fit = self.narrowed(picture, wish, picture.nodes.named([pin.choice.node]))
        return bool(fit.any())
