"""GPU limits of containers: reading them, and turning them into uses of the pod's claim."""

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
        requests: The requests, the same object where they are the same.
        gpus: Where GPUs are among them, as paths below ``resources``; what would be left empty as a whole.
        some: Whether a limit asks for any GPU or part of one.
        which: Whether one says which kind.
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
        WordError: They are none.
    """
    resources = container.resources
    if resources is None:
        return _NONE
    limits, requests = bytes(resources.limits), bytes(resources.requests)
    read = _amounts if max(len(limits), len(requests)) <= _LONGEST else _amounts.__wrapped__
    return read(limits, requests)


@functools.lru_cache(maxsize=256)
def _amounts(limits_json: bytes, requests_json: bytes) -> Amounts:
    """Read a container's limits and requests, which are asked for several times, and are alike in a job's pods."""
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
    """Return what each container of a reviewed pod asks for that wants a GPU or a part of one, by name in pod order.

    Where no limit says it the first container is meant: by the annotation ``gpus``, or with one GPU by a part's. Where
    only init containers have limits the one with the largest has the GPUs, and the others borrow them.

    Raises:
        WordError: A limit that is none, or limits and requests of whole GPUs that differ.
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
    """Raise where a container of a reviewed pod without GPUs has a limit that was meant to ask for some.

    Raises:
        WordError: One was; it says why it asks for none, and what to write.
    """
    container_limits.refuse_unread(
        (_limits_of(container.name), name, value)
        for container in (*pod.containers, *pod.init_containers)
        for name, value in amounts(container).limits.items()
    )


def have_limits(pod: pod_view.Pod) -> bool:
    """Return whether a limit of a container says how many GPUs the reviewed pod has."""
    return any(asked(container.name, amounts(container)) for container in (*pod.app_containers, *pod.init_containers))


def _of_init_containers(pod: pod_view.Pod) -> Asks:
    by_name = [(c.name, ask) for c in pod.init_containers if (ask := asked(c.name, amounts(c)))]
    return dict([max(by_name, key=lambda item: count(item[1]))] if by_name else [])


def which(pod: pod_view.Pod) -> tuple[str, str]:
    """Return the product and the vendor that the limits of a reviewed pod's containers name; each empty for none.

    Raises:
        WordError: Two containers name two.
    """
    every = [amounts(container) for container in (*pod.containers, *pod.init_containers)]
    if not any(said.which for said in every):
        return "", NVIDIA.word if any(said.some for said in every) else ""
    return _product(pod), _vendor(pod)


def _product(pod: pod_view.Pod) -> str:
    """Return which product the limits of a pod's containers name, as the annotation ``product`` would; empty for any.

    Raises:
        WordError: Two containers name two.
    """
    every = (*pod.containers, *pod.init_containers)
    by_name = {
        c.name: named for c in every if (named := container_limits.product(_limits_of(c.name), amounts(c).limits))
    }
    if len(set(by_name.values())) > 1:
        told = "; ".join(f"container {name[:63]!r}: {named}" for name, named in by_name.items())
        raise WordError(f"{told}: all GPUs of a pod are of one product; use several pods")
    return next(iter(by_name.values()), "")


def _vendor(pod: pod_view.Pod) -> str:
    """Return whose GPUs the limits of a pod's containers ask for; empty where no limit does.

    Raises:
        WordError: Two vendors'.
    """
    every = (*pod.containers, *pod.init_containers)
    by_name = {c.name: said for c in every if (said := container_limits.vendor(_limits_of(c.name), amounts(c).limits))}
    if len(set(by_name.values())) > 1:
        told = "; ".join(f"container {name[:63]!r}: {said}" for name, said in by_name.items())
        raise WordError(f"{told}: all GPUs of a pod are of one vendor; use several pods")
    return next(iter(by_name.values()), "")


def asked(name: str, amounts: Amounts) -> Asked:
    """Return what the limits of a container of a reviewed pod ask for; 0 for nothing.

    Requests of parts say nothing: their limits count. Those of whole GPUs must be their limits.

    Raises:
        WordError: A limit that is none, or the requests of whole GPUs differ from the limits.
    """
    where = f"container {name[:63]!r}:"
    limit = container_limits.asked(_limits_of(name), amounts.limits)
    if amounts.requests is amounts.limits or not isinstance(limit, int):
        return limit
    request = container_limits.asked(f"{where} requests", amounts.requests)
    if request != limit and (request or not container_limits.WHOLE.isdisjoint(amounts.requests)):
        raise WordError(
            f"{where} requests {described(request)} but limits {described(limit) if limit else 'none'}; write the same "
            f"in limits, and leave the request out"
        )
    return limit


def _limits_of(name: str) -> str:
    return f"container {name[:63]!r}: limits"


def lender(name: str, wanted: Asked, asks: Asks) -> str | None:
    """Return the app container whose requests an init container shares; None for the whole claim.

    An init container has ended before the others start, so it borrows their GPUs.

    Raises:
        WordError: It asks for what neither one container nor the whole pod has.
    """
    for other, ask in asks.items():
        if ask == wanted:
            return other
    numbers = [ask for ask in asks.values() if isinstance(ask, int)]
    if numbers and wanted == sum(numbers):
        return None
    allowed = [str(number) for number in sorted({*numbers, sum(numbers)})] if numbers else map(described, asks.values())
    raise WordError(
        f"init container {name[:63]!r}: {described(wanted)}; an init container borrows the GPUs of one container or of "
        f"the whole pod, so write {' or '.join(dict.fromkeys(allowed))}, or no limit"
    )
