"""The limit of multi-node NVLink: a pod of a ComputeDomain needs a node with a free channel. See ``node_limit``.

A *ComputeDomain* is NVIDIA's object for pods that use NVLink between nodes. A node's *channel* is the device that each
of these pods needs. A *pin* is the node and the devices that the controller chose for a claim.
"""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.api.claims.pins import Pin
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing.node_limit import NodeLimit, Search
from dradriver.queue.placement_request import PlacementRequest


class ChannelLimit(NodeLimit):
    """Keeps only nodes whose channel of multi-node NVLink the pod may have.

    Each node has one channel, and only one ComputeDomain can use it at a time. For a pod outside ComputeDomains, no
    node is left out.
    """

    def narrowed(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search:
        """Return the unchanged request, and a mask of nodes whose channel the pod may have.

        A node has one channel, for one ComputeDomain. ``fit`` is a mask of the nodes on which the pod fits.
        """
        domain = picture.channels.domain_of(wish.pod)
        return wish, fit if domain is None else fit & picture.channels.free(domain, wish.pod)

    def causes(self, picture: Picture, wish: PlacementRequest, open_nodes: Bools) -> Sequence[str]:
        """Return why some of ``open_nodes`` have no free NVLink channel for the pod.

        A node has one channel, for one ComputeDomain.
        """
        domain = picture.channels.domain_of(wish.pod)
        return () if domain is None else picture.channels.causes(domain, wish.pod, open_nodes)

    def keeps(self, picture: Picture, wish: PlacementRequest, pin: Pin) -> bool:
        """Return whether the pod of a claim may still use its node's NVLink channel.

        ``pin`` names the node, whose channel serves one ComputeDomain.
        """
        _, fit = self.narrowed(picture, wish, picture.nodes.named([pin.choice.node]))
        return bool(fit.any())
