"""CPU, memory and everything else that a pod takes, counted as kube-scheduler counts it.

Amounts are integers from 0 to 2**63 - 1: CPU in thousandths, all else in whole units. Source of the arithmetic:
``PodRequests`` in ``k8s.io/component-helpers/resource``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Final

from dradriver.api import quantity
from dradriver.api.errors import WordError
from dradriver.api.pods import Pod

logger = logging.getLogger(__name__)

LARGEST: Final = 2**63 - 1
PODS: Final = "pods"
CPU: Final = "cpu"
POD_LEVEL: Final = ("cpu", "memory", "hugepages-")  # what a pod can request as a whole
_LONGEST: Final = 64  # characters; the API server writes quantities with about 20 at most

Amounts = dict[str, int]


@functools.lru_cache(maxsize=4096)
def _read(resource: str, text: str) -> int:
    try:
        amount = quantity.milli(text) if resource == CPU else quantity.whole(text)
    except WordError as error:
        # The API server admits no such text; a surprise must cost one figure, not the controller.
        logger.warning("resource %.300s counts as 0: %s", resource, error)
        return 0
    return min(max(amount, 0), LARGEST)


def amounts(quantities: Mapping[str, str]) -> Amounts:
    """Return a list of resources as integers. Text that is no quantity counts as 0, endless text as the largest."""
    return {key: _read(key, text) if len(text) <= _LONGEST else LARGEST for key, text in quantities.items()}


def request_of(pod: Pod) -> Amounts:
    """Return what a pod takes from its node, itself as one of ``pods`` included.

    Init containers run one after another before the others; those with ``restartPolicy: Always`` (sidecars, KEP-753)
    stay, so each later init container and all main containers run beside them. What the pod requests as a whole counts
    instead of its containers' sums (KEP-2837).
    """
    # In place, for a pod may have thousands of containers with a resource of its own each.
    total: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers:
        asked = amounts(container.resources.requests)
        stays = container.restart_policy == "Always"
        for resource, amount in asked.items():
            beside = total.get(resource, 0) + amount
            peak[resource] = max(peak.get(resource, 0), beside)
            if stays:
                total[resource] = beside
    for container in pod.spec.containers:
        _add(total, amounts(container.resources.requests))
    for resource, amount in peak.items():
        total[resource] = max(total.get(resource, 0), amount)
    whole = pod.spec.resources.requests
    total.update(amounts({key: text for key, text in whole.items() if key.startswith(POD_LEVEL)}))
    _add(total, amounts(pod.spec.overhead))
    _add(total, {PODS: 1})
    return {resource: min(amount, LARGEST) for resource, amount in total.items()}


def _add(total: Amounts, more: Amounts) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount
