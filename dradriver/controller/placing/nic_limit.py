"""The limits of NICs for a single pod: NICs that its claim requests, and GPUs near NICs. See ``node_limit``.

A *pin* is the node and the devices that the controller chose for a claim. A *fleet* is the allocator's arrays of the
nodes and their free GPUs. A *rank* function returns the best sets of GPUs, best first.
"""

from __future__ import annotations

import msgspec

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import NoPlaceError
from dradriver.api.claims.pins import Pin
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import nic_choice, nic_places, nic_refusals
from dradriver.controller.placing.node_limit import Choices, NodeLimit, Rank, Search
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import Reason


class NicLimit(NodeLimit):
    """Chooses NICs of other drivers for a pod whose claim requests some."""

    def narrowed(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search:
        """Return the request with the NICs to choose, and the nodes with enough of them.

        The nodes are a mask: (rows,), one row per node. ``fit`` is a mask of the nodes on which the pod fits. NICs that
        only the scheduler can choose are removed from the request.

        Raises:
            NoPlaceError: The NICs are not read yet, or no node that the pod fits on has enough free NICs.
        """
        wish = nic_places.readable(picture, wish)
        ask = wish.nics
        if ask is None or not ask.requests or not fit.any():
            return wish, fit
        with_nics = fit & (picture.nics.counts.of(ask, fit) > 0)
        if not with_nics.any():
            raise nic_refusals.refusal(picture, ask)
        return wish, with_nics

    def ranked(self, picture: Picture, wish: PlacementRequest, rank: Rank, fit: Bools, fleet: Fleet) -> Choices:
        """Return the best sets of GPUs whose nodes have the requested NICs.

        ``rank`` ranks sets of GPUs in ``fleet`` on the nodes ``fit``, without NICs.

        Raises:
            NoPlaceError: There is no set with its NICs.
        """
        if wish.nics is None or not wish.nics.requests:
            return rank(fit, fleet)
        return nic_places.ranked(picture, wish, fit, fleet, rank)

    def completed(self, picture: Picture, wish: PlacementRequest, placement: Placement) -> Placement:
        """Return a placement extended by the NICs for its GPUs."""
        nics = nic_places.chosen(picture, wish, placement.node, placement.uuids)
        assert nics is not None, "it was ranked for having them"
        return msgspec.structs.replace(placement, nics=nics)

    def not_known(self, picture: Picture, wish: PlacementRequest) -> Reason | None:
        """Return the reason if the cluster's NICs are not read yet; else None.

        None also if the pod requests no NICs.
        """
        return picture.nics.unread() if wish.nics is not None and wish.nics.requests else None

    def keeps(self, picture: Picture, wish: PlacementRequest, pin: Pin) -> bool:
        """Return whether a claim's NICs exist, are free, and match its pod's request.

        ``pin`` has the claim's node and NICs. NICs that the claim itself uses count as free.
        """
        try:
            ask = nic_places.readable(picture, wish).nics
        except NoPlaceError:
            return False
        assert ask is not None, "asked of such wishes"
        pinned_counts = {name: len(addresses) for name, addresses in pin.nics.items()}
        if pinned_counts != {request.name: request.count for request in ask.requests}:
            return False
        if not ask.requests:
            return True
        node = pin.choice.node
        if picture.inventory.pool(node) is None:
            return False

        # Choose again with all other NICs taken: only the pinned ones can be the result.
        pinned = {address for addresses in pin.nics.values() for address in addresses}
        others = {(node, nic.address) for nic in picture.nics.on(node) if nic.address not in pinned}
        chosen_again = nic_choice.chosen(picture, ask, node, pin.uuids, besides=wish.claim, taken=others)
        return chosen_again is not None


class NearNicLimit(NodeLimit):
    """Prefers sets of GPUs that are near NICs.

    If the pod requests NICs, these count; otherwise any NICs of the node count.
    """

    def preferred(self, picture: Picture, wish: PlacementRequest, fit: Bools) -> Search | None:
        """Return the request with near NICs required, and the nodes to search.

        Returns None if the pod does not prefer near NICs. ``fit`` is a mask of the nodes to search.
        """
        near_wish = nic_places.near(wish)
        return None if near_wish is None else (near_wish, fit)
