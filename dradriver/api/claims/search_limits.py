"""How much a claim may leave to the scheduler's search: limits of claims that nobody chose the GPUs of.

kube-scheduler tries all ways to fill a claim on a node before it gives up, up to its filter timeout of 10 s, and
schedules no other pod meanwhile. An admission policy of the chart (``partspolicy.yaml``) has the same limits for the
claims of users. The webhook asks ``check`` about the pods whose claims the controller makes without a choice.

CPU time of the scheduler's allocator on one node, for the worst claims that these limits let pass:

- 8 requests of a GPU where 7 are free: 55 ms on Kubernetes 1.37.2, 35 ms on 1.35.4.
- One request of 16 GPUs where 15 are free: 80 ms on 1.37.2. Version 1.35.4 tries all orders of the free GPUs: 0.4 s
  with 8 of them, 3.1 s with 9, and the whole filter timeout with 10 to 15. Only nodes with more than eight GPUs have as
  many. A limit of 9 GPUs on 1.35 would refuse every claim for such a node.
- 4 requests of 2 GPUs with 2 alternatives, 7 free: 60 ms on 1.37.2, 390 ms on 1.35.4.
- 8 equal shares where 7 fit: 190 ms on 1.37.2, 70 ms on 1.35.4. 4 different shares: 10 ms and 190 ms.
- 4 different requests of which the last fits no GPU, 16 free: 20 ms on 1.37.2, 15 ms on 1.35.4.
- 8 MIG slices in one request where 7 are free and each placement is a device: 1.4 s on 1.37.2. Otherwise 200 ms.

With the whole scheduler, on two busy cores, other pods were bound within 1.5 s during the worst of these searches: 8
equal shares on 1.37.2, and 4 requests of 2 GPUs with 2 alternatives on 1.35.4. Each node with as many free GPUs costs
the same again.

Above them: 9 requests of a GPU where 8 are free 0.5 s, 17 shares of 40 % on 8 GPUs more than 10 s.

The limits are for one claim. The scheduler searches for all claims of a pod together, and no policy sees all of them: a
pod names templates, which need not exist yet. A limit of the number of claims would refuse pods of other drivers, and
three claims are too many already. Three claims of 8 shares of 40 % held up other pods for 10.2 s on 1.37.2,
four of 8 equal shares for 10.9 s on 1.35.4. With ``filterTimeout: 3s``, as docs/limits.md advises, both took 3.1 s, and
so did the request of 16 GPUs on 1.35.4. Version 1.35 has the timeout for each node, and took 9.5 s for 32 nodes. On
1.37 the first node that reaches it ends the attempt, and the pod is tried again after 1 to 10 s.
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
    """Raise an error if the scheduler's search would take too long for what a claim requests.

    The limits depend on the number of requests, on their alternatives, on whether the requests differ, and on whether
    one request asks for fractions: the scheduler then searches as if there were several.

    Args:
        spec: A claim's spec. All of its requests are for GPUs of this driver or of the one that it extends.

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
            raise WordError(_too_much(f"{gpus} GPUs; one request asks for at most {limit}"))
        return
    if gpus > IN_SEVERAL_REQUESTS:
        raise WordError(_too_much(f"{gpus} GPUs in {request_count} requests; several ask for {IN_SEVERAL_REQUESTS}"))
    alternative_count = sum(map(len, alternatives_by_request))
    if gpus + alternative_count > WITH_ALTERNATIVES:
        raise WordError(
            _too_much(
                f"{gpus} GPUs in {request_count} requests with {alternative_count} alternatives; GPUs and alternatives "
                f"together are at most {WITH_ALTERNATIVES}"
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
        raise WordError(_too_much(f"{gpus} different parts of GPUs; requests that differ ask for at most {DIFFERENT}"))


def _too_much(asked: str) -> str:
    return f"kube-scheduler would have to search too long for {asked}"
