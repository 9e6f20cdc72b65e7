"""Limits of claims whose GPUs the scheduler chooses, so that its search does not take too long.

kube-scheduler tries all ways to fill a claim on a node before it gives up. Its filter timeout limits this to 10 s.
Meanwhile it schedules no other pod. An admission policy of the chart (``partspolicy.yaml``) has the same limits for the
claims of users. The webhook calls ``check`` for pods whose claims the controller creates without choosing GPUs.

CPU time of the scheduler's allocator on one node, for the worst claims within these limits, on Kubernetes 1.37.2 and
1.35.4:

- 8 requests of a GPU where 7 are free: 55 ms on 1.37.2, 35 ms on 1.35.4.
- One request of 16 GPUs where 15 are free: 80 ms on 1.37.2. Version 1.35.4 tries all orders of the free GPUs. It needs
  0.4 s with 8 free GPUs, 3.1 s with 9, and the whole filter timeout with 10 to 15. Only nodes with more than eight GPUs
  can have so many. A limit of 9 GPUs on 1.35 would refuse every claim for these nodes.
- 4 requests of 2 GPUs with 2 alternatives, 7 free: 60 ms on 1.37.2, 390 ms on 1.35.4.
- 8 equal shares where 7 fit: 190 ms on 1.37.2, 70 ms on 1.35.4.
- 4 different shares: 10 ms on 1.37.2, 190 ms on 1.35.4.
- 4 different requests of which the last fits no GPU, 16 free: 20 ms on 1.37.2, 15 ms on 1.35.4.
- 8 MIG slices in one request where 7 are free: 1.4 s on 1.37.2 with ``mig: placements`` (each placement is a device),
  200 ms without.

A test ran the whole scheduler on two busy cores, with the claim of 8 equal shares on 1.37.2, and with 4 requests of 2
GPUs with 2 alternatives on 1.35.4. Other pods were bound within 1.5 s during the search. Each further node with as many
free GPUs costs the same time again.

Claims above the limits: 9 requests of a GPU where 8 are free take 0.5 s. 17 shares of 40 % on 8 GPUs take more than 10
s.

The limits are for one claim. The scheduler searches for all claims of a pod together, and no policy sees all of them: a
pod names templates, which need not exist yet. A limit of the number of claims would refuse pods of other drivers, and
three claims are too many already. These pods held up other pods:

- on 1.37.2, a pod with three claims of 8 shares of 40 %: for 10.2 s, and for 3.1 s with ``filterTimeout: 3s``
- on 1.35.4, a pod with four claims of 8 equal shares: for 10.9 s, and for 3.1 s with ``filterTimeout: 3s``
- on 1.35.4, a pod with one request of 16 GPUs: for 3.1 s with ``filterTimeout: 3s``

docs/reference/limits.md advises this ``filterTimeout``. On 1.35 the timeout is for each node: a search on 32 nodes took
9.5 s. On 1.37 the first node that reaches the timeout ends the attempt, and the pod is tried again after 1 to 10 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dradriver.api.base.errors import WordError

IN_ONE_REQUEST: Final = 16
"""GPUs of a claim with one request."""
IN_SEVERAL_REQUESTS: Final = 8
"""GPUs of a claim with several requests, and parts of GPUs of any claim."""
WITH_ALTERNATIVES: Final = 16
"""GPUs and alternatives together, of a claim with several requests; a request without alternatives counts as one."""
DIFFERENT: Final = 4
"""GPUs or parts of a claim whose requests differ."""

_COMPARED_FIELDS: Final = ("deviceClassName", "selectors", "capacity", "tolerations")


def check(spec: Mapping[str, Any]) -> None:
    """Raise if the scheduler would need too long to search devices for a claim.

    The limits depend on four things: the number of requests, their alternatives, whether the requests differ, and
    whether a request is for fractions. For a fraction the scheduler searches as if there were several requests.

    Args:
        spec: A claim's spec. All its requests are for GPUs of the allocating driver.

    Raises:
        WordError: The claim requests too much; the message has the figures.
    """
    alternatives_by_request = [
        request.get("firstAvailable") or [request["exactly"]] for request in spec["devices"].get("requests") or ()
    ]
    # The scheduler takes one alternative of each request: count the largest.
    gpus = sum(
        max(alternative.get("count", 1) for alternative in alternatives) for alternatives in alternatives_by_request
    )
    request_count = len(alternatives_by_request)
    if request_count <= 1:
        has_fractions = any(
            "capacity" in alternative for alternatives in alternatives_by_request for alternative in alternatives
        )
        limit = IN_SEVERAL_REQUESTS if has_fractions else IN_ONE_REQUEST
        if gpus > limit:
            raise WordError(_too_much(f"{gpus} GPUs. One request can have at most {limit}"))
        return
    if gpus > IN_SEVERAL_REQUESTS:
        raise WordError(
            _too_much(
                f"{gpus} GPUs in {request_count} requests. Several requests can have at most {IN_SEVERAL_REQUESTS}"
            )
        )
    alternative_count = sum(map(len, alternatives_by_request))
    if gpus + alternative_count > WITH_ALTERNATIVES:
        raise WordError(
            _too_much(
                f"{gpus} GPUs in {request_count} requests with {alternative_count} alternatives. GPUs and alternatives "
                f"together can be at most {WITH_ALTERNATIVES}"
            )
        )

    # If all requests are alike, the scheduler's search is shorter (figures above).
    first_alternative = alternatives_by_request[0][0]
    is_alike = all(
        alternative.get(field) == first_alternative.get(field)
        for alternatives in alternatives_by_request
        for alternative in alternatives
        for field in _COMPARED_FIELDS
    )
    if not is_alike and gpus > DIFFERENT:
        raise WordError(
            _too_much(f"{gpus} different fractions of GPUs. Requests that differ can have at most {DIFFERENT}")
        )


def _too_much(asked: str) -> str:
    return f"kube-scheduler would search too long for {asked}."
