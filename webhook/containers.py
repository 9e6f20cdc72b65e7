"""GPU limits of containers: reading them, and turning them into uses of the pod's claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.api import messages, names, quantity
from dradriver.api.annotations import gpu_number
from dradriver.api.errors import WordError
from webhook import view

Counts = dict[str, int]
"""GPUs of each container that wants any, by name in pod order."""


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """A container's limits and requests by resource."""

    limits: Mapping[str, view.Quantity]
    requests: Mapping[str, view.Quantity]

    @property
    def gpus(self) -> tuple[tuple[str, ...], ...]:
        """Where GPUs are among them, as paths below ``resources``; what would be left empty as a whole."""
        return tuple(
            (where, names.GPU_RESOURCE) if len(found) > 1 else (where,)
            for where, found in (("limits", self.limits), ("requests", self.requests))
            if names.GPU_RESOURCE in found
        )


_NONE: Final = Amounts({}, {})


def amounts(container: view.Container) -> Amounts:
    """Return a container's limits and requests.

    Raises:
        WordError: They are none.
    """
    resources = container.resources
    if resources is None:
        return _NONE
    limits = view.quantities(resources.limits)
    same = view.same(resources.limits, resources.requests)
    return Amounts(limits, limits if same else view.quantities(resources.requests))


def counts(pod: view.Pod) -> Counts:
    """Return the GPUs of each container that wants any, by name in pod order, from limits or the ``gpus`` annotation.

    Raises:
        WordError: A count that is no whole number, or limits and requests that differ.
    """
    found = {c.name: count for c in pod.app_containers if (count := asked(c.name, amounts(c)))}
    text = pod.words.get(names.GPUS)
    if text is not None and not found and (first := pod.app_containers[:1]):
        return {first[0].name: gpu_number(names.GPUS, text)}
    return found


def asked(name: str, amounts: Amounts) -> int:
    """Return how many GPUs a container's limits ask for; 0 for none.

    Raises:
        WordError: The count is no whole number, or the requests differ from the limits.
    """
    limit = _count(name, "limits", amounts.limits)
    if amounts.requests is amounts.limits:
        return limit or 0
    request = _count(name, "requests", amounts.requests)
    if request is not None and request != (limit or 0):
        raise WordError(
            f"container {name[:63]!r}: requests {names.GPU_RESOURCE}: {request} but limits "
            f"{'none' if limit is None else limit}; write the same number in limits, and leave the request out"
        )
    return limit or 0


def _count(name: str, where: str, quantities: Mapping[str, view.Quantity]) -> int | None:
    value = quantities.get(names.GPU_RESOURCE)
    if value is None:
        return None
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) <= 4:
        return int(text)
    try:
        thousandths = quantity.milli(text)
    except WordError:
        thousandths = -1
    if thousandths < 0 or thousandths % 1000 or thousandths > 10**9:
        raise messages.is_no(f"container {name[:63]!r}: {where} {names.GPU_RESOURCE}", text, messages.GPUS)
    return thousandths // 1000


def init_request(name: str, wanted: int, counts: Counts) -> str | None:
    """Return the request that an init container shares with an app container; None for the whole claim.

    An init container has ended before the others start, so it borrows their GPUs.

    Raises:
        WordError: It asks for a number that neither one container nor the whole pod has.
    """
    for other, count in counts.items():
        if count == wanted:
            return other
    if wanted == sum(counts.values()):
        return None
    allowed = sorted({*counts.values(), sum(counts.values())})
    raise WordError(
        f"init container {name[:63]!r}: {wanted} {names.GPU_RESOURCE}; an init container borrows the GPUs "
        f"of one container or of the whole pod, so write {' or '.join(map(str, allowed))}, or no limit"
    )
