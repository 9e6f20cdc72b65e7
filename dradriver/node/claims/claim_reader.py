"""Reads a claim from the API server within a time limit, and checks that it has the expected uid."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.kube.errors import ApiError, Unreachable
from dradriver.node.errors import ClaimError, NotYetError

GET_S: Final = 10.0
_LEAST_GET_S: Final = 1.0
GONE_S: Final = 5.0  # the kubelet has just read the claim: one that is not found may be met by a lagging server

GetClaim = Callable[[str, str], Awaitable[ResourceClaim]]


class GoneError(NotYetError):
    """The API server has no claim of this name, perhaps because it was deleted."""


class AnotherError(ClaimError):
    """The expected claim was deleted: the claim of this name has another uid."""


class ClaimReader:
    """Reads claims from the API server."""

    def __init__(self, get_claim: GetClaim) -> None:
        """Store the arguments; read nothing yet.

        Args:
            get_claim: Reads a claim from the API server by namespace and name.
        """
        self._get_claim = get_claim

    async def read(
        self, namespace: str, name: str, uid: str, *, until: float = math.inf, at_most_s: float = GET_S
    ) -> ResourceClaim:
        """Return the claim with this name and uid as the API server has it.

        Args:
            namespace: Namespace of the claim.
            name: Name of the claim.
            uid: Uid of the claim.
            until: When the answer must have arrived, in seconds of the event loop's clock; the server always gets at
                least one second.
            at_most_s: Longest wait for the answer, in seconds.

        Raises:
            GoneError: There is no claim of this name.
            AnotherError: The claim of this name has another uid.
            NotYetError: The server does not answer or refuses the request, or its answer is not a claim.
        """
        # The kubelet's call may be near its end: even then the server gets ``_LEAST_GET_S``.
        left_s = until - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(min(at_most_s, left_s), _LEAST_GET_S)):
                claim = await self._get_claim(namespace, name)
        except ApiError as error:
            if error.not_found:
                raise GoneError(f"claim {namespace}/{name} does not exist", patience_s=GONE_S) from error
            raise NotYetError(f"claim {namespace}/{name} cannot be read: {error}") from error
        except (Unreachable, TimeoutError) as error:
            raise NotYetError(f"claim {namespace}/{name} cannot be read: no answer from the API server") from error
        # A claim of the same name may have been created since the kubelet was told of the one that is meant.
        if claim.metadata.uid != uid:
            raise AnotherError(
                f"claim {namespace}/{name} was deleted and created again: its uid is {claim.metadata.uid}, not {uid}"
            )
        return claim
