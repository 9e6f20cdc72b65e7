"""CPU, memory and other resources that a pod uses, counted as in kube-scheduler.

Amounts are integers from 0 to 2**63 - 1: CPU in thousandths, all others in whole units. Source of the arithmetic:
``PodRequests`` in ``k8s.io/component-helpers/resource``, with ``UseStatusResources`` as kube-scheduler calls it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from dradriver.api.base import quantity
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Container, ContainerStatus, Pod, ResourceRequirements

logger = logging.getLogger(__name__)

LARGEST: Final = 2**63 - 1
PODS: Final = "pods"
CPU: Final = "cpu"
POD_LEVEL: Final = ("cpu", "memory", "hugepages-")  # what a pod can request as a whole
PENDING: Final = "PodResizePending"  # the condition of a pod whose resize its node has not begun
INFEASIBLE: Final = "Infeasible"  # its reason where the node never can
_LONGEST: Final = 64  # characters; the API server writes quantities with about 20 at most

Amounts = dict[str, int]


@functools.lru_cache(maxsize=4096)
def _read(resource: str, text: str) -> int:
    try:
        amount = quantity.milli(text) if resource == CPU else quantity.whole(text)
    except WordError as error:
        # The API server admits no such text; a surprise must cost one figure, not the controller.
        logger.warning("Resource %.300s counts as 0, because its quantity cannot be read: %s", resource, error)
        return 0
    return min(max(amount, 0), LARGEST)


def amounts(quantities: Mapping[str, str]) -> Amounts:
    """Return quantities of resources as integers.

    A text that is no quantity counts as 0. A text that is too long counts as the largest amount.
    """
    return {key: _read(key, text) if len(text) <= _LONGEST else LARGEST for key, text in quantities.items()}


def request_of(pod: Pod) -> Amounts:
    """Return the resources that a pod uses of its node, including 1 of the resource ``pods``.

    - Init containers run one after another before the main containers. Init containers with ``restartPolicy: Always``
      (sidecars, KEP-753) go on running together with all later containers.
    - Resources that the pod requests as a whole replace the sum of its containers (KEP-2837).
    - While a pod is resized in place (KEP-1287), the largest of three amounts counts: the pod's request, the node's
      allocation, and the amount in use. If the node can never do the resize, the request does not count.
    """
    infeasible = is_infeasible(pod.status.conditions)
    all_statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    statuses = {status.name: status for status in all_statuses}
    # These are updated in place: a pod can have thousands of containers, each with a resource that no other has.
    total: Amounts = {}  # of the containers that go on running
    peak: Amounts = {}  # the most during any init container
    for container in pod.spec.init_containers:
        is_sidecar = container.restart_policy == "Always"
        for resource, amount in _asked(container, statuses, infeasible=infeasible).items():
            with_sidecars = total.get(resource, 0) + amount
            peak[resource] = max(peak.get(resource, 0), with_sidecars)
            if is_sidecar:
                total[resource] = with_sidecars
    for container in pod.spec.containers:
        _add(total, _asked(container, statuses, infeasible=infeasible))
    for resource, amount in peak.items():
        total[resource] = max(total.get(resource, 0), amount)
    overhead = amounts(pod.spec.overhead)
    total.update(_asked_as_a_whole(pod, overhead, infeasible=infeasible))
    _add(total, overhead)
    _add(total, {PODS: 1})
    return {resource: min(amount, LARGEST) for resource, amount in total.items()}


class Told(Protocol):
    """A condition in a pod's status, such as ``PodResizePending``: its type and its reason."""

    @property
    def type(self) -> str:
        """Return the type of a pod's condition."""

    @property
    def reason(self) -> str:
        """Return the reason of a pod's condition."""


def is_infeasible(conditions: Iterable[Told]) -> bool:
    """Return whether a pod's conditions say that its node can never do the pod's resize."""
    for condition in conditions:
        if condition.type == PENDING:
            return condition.reason == INFEASIBLE
    return False


def _asked(container: Container, statuses: Mapping[str, ContainerStatus], *, infeasible: bool) -> Amounts:
    spec, status = amounts(container.resources.requests), statuses.get(container.name)
    known = [] if status is None else _known(status.resources, status.allocated_resources)
    return _largest(known if known and infeasible else [spec, *known])


def _asked_as_a_whole(pod: Pod, overhead: Amounts, *, infeasible: bool) -> Amounts:
    spec = _pod_level(amounts(pod.spec.resources.requests))
    if not spec:
        return {}
    # The node counts the overhead in.
    known = [
        {resource: max(amount - overhead.get(resource, 0), 0) for resource, amount in _pod_level(each).items()}
        for each in _known(pod.status.resources, pod.status.allocated_resources)
    ]
    return _largest(known if known and infeasible else [spec, *known])


def _known(actual: ResourceRequirements | None, allocated: Mapping[str, str] | None) -> list[Amounts]:
    """Return the amounts in the status of a pod or container, which differ during a resize.

    These are ``actual``, the amounts in use, and ``allocated``, the node's allocation, if they are set.
    """
    known = [] if actual is None else [amounts(actual.requests)]
    return known if allocated is None else [*known, amounts(allocated)]


def _pod_level(asked: Amounts) -> Amounts:
    return {resource: amount for resource, amount in asked.items() if resource.startswith(POD_LEVEL)}


def _largest(several: list[Amounts]) -> Amounts:
    largest, *others = several
    for other in others:
        for resource, amount in other.items():
            largest[resource] = max(largest.get(resource, 0), amount)
    return largest


def _add(total: Amounts, more: Amounts) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount
