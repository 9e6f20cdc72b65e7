"""Reads the GPU limits of containers, and converts them into uses of the pod's claim.

``Asks`` has the GPUs or fractions (shares, MIG slices) that each container requests, by container name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary import annotation_words, container_limits
from dradriver.api.vocabulary.container_requests import Asked, count, described
from dradriver.topology.vendors import NVIDIA
from webhook import pod_view

Asks = dict[str, Asked]
"""What each container asks for that wants any GPU or part of one, by name in pod order."""

_PARTS: Final = frozenset((names.SHARE, names.SHARE_MEMORY, names.SHARE_CORES, names.MIG_PROFILE))


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """A container's limits and requests by resource.

    Attributes:
        limits: The limits.
        requests: The requests; the same object if they are equal.
        gpus: The paths of the GPU entries below ``resources``. If ``limits`` or ``requests`` has only GPU entries, the
            path of this whole field.
        some: Whether a limit requests any GPU or fraction.
        which: Whether the name of a limit also selects a product, or another vendor than NVIDIA.
    """

    limits: Mapping[str, pod_view.Quantity]
    requests: Mapping[str, pod_view.Quantity]
    gpus: tuple[tuple[str, ...], ...]
    some: bool = False
    which: bool = False


_NONE: Final = Amounts({}, {}, ())
_LONGEST: Final = 1024  # bytes of JSON of limits or requests that are remembered


def amounts(container: pod_view.Container) -> Amounts:
    """Return the limits and requests of a container of a reviewed pod.

    Raises:
        WordError: The limits or requests are not maps of quantities.
    """
    resources = container.resources
    if resources is None:
        return _NONE
    limits, requests = bytes(resources.limits), bytes(resources.requests)
    read = _amounts if max(len(limits), len(requests)) <= _LONGEST else _amounts.__wrapped__
    return read(limits, requests)


@functools.lru_cache(maxsize=256)
def _amounts(limits_json: bytes, requests_json: bytes) -> Amounts:
    """Return a container's limits and requests from their JSON.

    The result is cached: limits are read several times for a pod, and the pods of a job have equal limits.
    """
    limited = pod_view.quantities(Raw(limits_json))
    requested = limited if limits_json == requests_json else pod_view.quantities(Raw(requests_json))
    gpus = (*_gpus("limits", limited), *_gpus("requests", requested))
    return Amounts(
        limited, requested, gpus, container_limits.some(limited), any(map(container_limits.says_which, limited))
    )


def _gpus(where: str, amounts: Mapping[str, pod_view.Quantity]) -> list[tuple[str, ...]]:
    ours = [(where, resource) for resource in amounts if container_limits.is_ours(resource)]
    return [(where,)] if ours and len(ours) == len(amounts) else list(ours)


def asks(pod: pod_view.Pod) -> Asks:
    """Return the GPUs or fractions that each container of a reviewed pod requests.

    The result is by container name, in pod order.

    - Without limits, the first container has the GPUs: as many as the annotation ``gpus`` says, or one if an annotation
      requests a fraction.
    - If only init containers have limits, the one with the largest limit has the GPUs, and the others use the same
      GPUs.

    Raises:
        WordError: A limit is invalid, or limits and requests of whole GPUs differ.
    """
    by_name = {c.name: ask for c in pod.app_containers if (ask := asked(c.name, amounts(c)))}
    if not by_name and (first := pod.app_containers[:1]):
        text = pod.words.get(names.GPUS)
        if text is not None:
            return {first[0].name: annotation_words.BY_KEY[names.GPUS].read(names.GPUS, text)}
        if not _PARTS.isdisjoint(pod.words):
            return {first[0].name: 1}
    return by_name or _of_init_containers(pod)


def refuse_unread(pod: pod_view.Pod) -> None:
    """Raise if a limit seems to request GPUs but is not one that the driver reads.

    Raises:
        WordError: With the reason, and what to write instead.
    """
    container_limits.refuse_unread(
        (_limits_of(container.name), name, value)
        for container in (*pod.containers, *pod.init_containers)
        for name, value in amounts(container).limits.items()
    )


def have_limits(pod: pod_view.Pod) -> bool:
    """Return whether GPU limits, and not an annotation or a template, say how many GPUs a pod has."""
    return any(asked(container.name, amounts(container)) for container in (*pod.app_containers, *pod.init_containers))


def _of_init_containers(pod: pod_view.Pod) -> Asks:
    by_name = [(c.name, ask) for c in pod.init_containers if (ask := asked(c.name, amounts(c)))]
    return dict([max(by_name, key=lambda item: count(item[1]))] if by_name else [])


def which(pod: pod_view.Pod) -> tuple[str, str]:
    """Return product and vendor of the GPUs in the limits of a reviewed pod.

    The product is empty if the limits name none. The vendor is empty if there are no GPU limits.

    Raises:
        WordError: Two containers name different products or vendors.
    """
    every = [amounts(container) for container in (*pod.containers, *pod.init_containers)]
    if not any(said.which for said in every):
        return "", NVIDIA.word if any(said.some for said in every) else ""
    return _product(pod), _vendor(pod)


def _product(pod: pod_view.Pod) -> str:
    """Return the product that a pod's limits name, as a value of the annotation ``product``.

    Empty if they name none.

    Raises:
        WordError: Two containers name different products.
    """
    every = (*pod.containers, *pod.init_containers)
    by_name = {
        c.name: named for c in every if (named := container_limits.product(_limits_of(c.name), amounts(c).limits))
    }
    if len(set(by_name.values())) > 1:
        containers_text = ", ".join(f"container {name[:63]!r}: {named}" for name, named in by_name.items())
        raise WordError(
            f"The containers name different GPU products ({containers_text}). All GPUs of a pod must be of one "
            f"product. Use one pod for each product."
        )
    return next(iter(by_name.values()), "")


def _vendor(pod: pod_view.Pod) -> str:
    """Return the vendor of the GPUs in the limits of a pod's containers; empty without GPU limits.

    Raises:
        WordError: The limits are for GPUs of two vendors.
    """
    every = (*pod.containers, *pod.init_containers)
    by_name = {c.name: said for c in every if (said := container_limits.vendor(_limits_of(c.name), amounts(c).limits))}
    if len(set(by_name.values())) > 1:
        containers_text = ", ".join(f"container {name[:63]!r}: {said}" for name, said in by_name.items())
        raise WordError(
            f"The containers request GPUs of different vendors ({containers_text}). All GPUs of a pod must be of one "
            f"vendor. Use one pod for each vendor."
        )
    return next(iter(by_name.values()), "")


def asked(name: str, amounts: Amounts) -> Asked:
    """Return the GPUs or fractions that a container's limits request; 0 for none.

    ``amounts`` has the container's limits and requests; ``name`` is its name, for messages.

    For fractions only the limits count, not the requests. For whole GPUs the requests must equal the limits.

    Raises:
        WordError: A limit is invalid, or the requests of whole GPUs differ from the limits.
    """
    where = f"container {name[:63]!r}:"
    limit = container_limits.asked(_limits_of(name), amounts.limits)
    if amounts.requests is amounts.limits or not isinstance(limit, int):
        return limit
    request = container_limits.asked(f"{where} requests", amounts.requests)
    if request != limit and (request or not container_limits.WHOLE.isdisjoint(amounts.requests)):
        raise WordError(
            f"{where} requests {described(request)} but limits {described(limit) if limit else 'none'}. Requests and "
            f"limits of GPUs must be equal. Write limits only."
        )
    return limit


def _limits_of(name: str) -> str:
    return f"container {name[:63]!r}: limits"


def lender(name: str, wanted: Asked, asks: Asks) -> str | None:
    """Return the container whose GPUs an init container also uses.

    None if it uses all GPUs of the pod. An init container ends before the app containers start, so both can use the
    same GPUs.

    Args:
        name: The name of the init container.
        wanted: What it requests.
        asks: The GPUs of the pod's containers, as ``asks`` returns them.

    Raises:
        WordError: It requests a number of GPUs that neither one container nor the whole pod has.
    """
    for other, ask in asks.items():
        if ask == wanted:
            return other
    numbers = [ask for ask in asks.values() if isinstance(ask, int)]
    if numbers and wanted == sum(numbers):
        return None
    allowed = [str(number) for number in sorted({*numbers, sum(numbers)})] if numbers else map(described, asks.values())
    raise WordError(
        f"init container {name[:63]!r} requests {described(wanted)}. An init container uses the GPUs of one container "
        f"or of the whole pod. Write {' or '.join(dict.fromkeys(allowed))}, or remove the limit."
    )
