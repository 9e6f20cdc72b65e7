"""Registers the features' limits on the choice of a node, each with a test whether a request uses the feature.

``decide`` calls this module once for each decision. A pod that uses no feature runs no code of a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dradriver.allocator.request import NEAR_PREFERRED, Whole
from dradriver.controller.placing.channel_limit import ChannelLimit
from dradriver.controller.placing.claim_limit import OtherClaimLimit
from dradriver.controller.placing.nic_limit import NearNicLimit, NicLimit
from dradriver.controller.placing.node_limit import NodeLimit
from dradriver.controller.placing.spot_limit import SpotLimit
from dradriver.queue.placement_request import PlacementRequest


def _names_templates(wish: PlacementRequest) -> bool:
    """Return whether a pod names claim templates of other devices.

    These can be channels of multi-node NVLink. Only the cluster cache knows whether they are.
    """
    return bool(wish.beside)


def _names_other_claims(wish: PlacementRequest) -> bool:
    """Return whether a pod names claims of other drivers that may be allocated already."""
    return bool(wish.other_claims)


def _requests_nics(wish: PlacementRequest) -> bool:
    return wish.nics is not None


def _prefers_near_nics(wish: PlacementRequest) -> bool:
    if wish.nics is not None:
        return wish.nics.near == NEAR_PREFERRED
    return isinstance(wish.request, Whole) and wish.request.near_nic == NEAR_PREFERRED


def _prefers_spot_or_others(wish: PlacementRequest) -> bool:
    return bool(wish.spot)


# The order counts: nodes are narrowed, and sets put first, by one limit after the other.
_LIMITS: Final[tuple[tuple[Callable[[PlacementRequest], bool], NodeLimit], ...]] = (
    (_names_templates, ChannelLimit()),
    (_names_other_claims, OtherClaimLimit()),
    (_requests_nics, NicLimit()),
    (_prefers_near_nics, NearNicLimit()),
    (_prefers_spot_or_others, SpotLimit()),
)


def concerning(wish: PlacementRequest) -> tuple[NodeLimit, ...]:
    """Return the limits of the features that a request uses, in calling order."""
    return tuple(limit for is_used, limit in _LIMITS if is_used(wish))
