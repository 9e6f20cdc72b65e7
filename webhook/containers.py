"""GPU limits of containers: reading them, and turning them into uses of the pod's claim."""

from __future__ import annotations

from typing import Any

from dradriver.api import annotations as words
from dradriver.api import names, quantity
from dradriver.api.errors import WordError
from webhook import pods


def counts(pod: pods.Object) -> dict[str, int]:
    """Return the GPUs of each container that wants any, by name in pod order, from limits or the ``gpus`` annotation.

    Raises:
        WordError: A count that is no whole number, or limits and requests that differ.
    """
    found = {container["name"]: count for container in pods.containers(pod) if (count := asked(container))}
    text = pods.annotations_of(pod).get(names.GPUS)
    if text is not None and not found and (first := pods.containers(pod)[:1]):
        return {first[0]["name"]: words.gpu_number(names.GPUS, text)}
    return found


def asked(container: pods.Object) -> int:
    """Return how many GPUs a container's limits ask for; 0 for none.

    Raises:
        WordError: The count is no whole number, or the requests differ from the limits.
    """
    resources = container.get("resources") or {}
    limit = _count(container, "limits", resources)
    request = _count(container, "requests", resources)
    if request is not None and request != (limit or 0):
        raise WordError(
            f"container {container.get('name')!r}: requests {names.GPU_RESOURCE}: {request} but limits "
            f"{'none' if limit is None else limit}; write the same number in limits, and leave the request out"
        )
    return limit or 0


def _count(container: pods.Object, where: str, resources: pods.Object) -> int | None:
    value: pods.Quantity | None = (resources.get(where) or {}).get(names.GPU_RESOURCE)
    if value is None:
        return None
    try:
        thousandths = quantity.milli(str(value))
    except WordError:
        thousandths = -1
    if thousandths < 0 or thousandths % 1000:
        raise WordError(
            f"container {container.get('name')!r}: {where} {names.GPU_RESOURCE}: {str(value)[:64]!r} is no count of "
            f"GPUs; write a whole number from 1 to {words.MOST_GPUS}"
        )
    return thousandths // 1000


def strip(container: pods.Object) -> None:
    """Take the GPU limit and request away: the claim takes their place."""
    resources = container.get("resources")
    for where in ("limits", "requests"):
        if resources and names.GPU_RESOURCE in (resources.get(where) or {}):
            pods.put(resources, where, {k: v for k, v in resources[where].items() if k != names.GPU_RESOURCE})


def use_claim(container: pods.Object, request: str | None) -> None:
    """Make the container use one request of the pod's claim, or all of it where ``request`` is None."""
    resources: dict[str, Any] = container.get("resources") or {}
    entry = {"name": names.POD_CLAIM} | ({"request": request} if request else {})
    others = [claim for claim in pods.items(resources, "claims") if claim.get("name") != names.POD_CLAIM]
    if uses_claim(container) != entry:
        container["resources"] = resources | {"claims": [*others, entry]}


def uses_claim(container: pods.Object) -> pods.Object | None:
    """Return the container's entry for the pod's claim; None where it has none."""
    claims = pods.items(container.get("resources") or {}, "claims")
    return next((claim for claim in claims if claim.get("name") == names.POD_CLAIM), None)


def init_request(container: pods.Object, counts: dict[str, int]) -> str | None:
    """Return the request that an init container shares with an app container; None for the whole claim.

    An init container has ended before the others start, so it borrows their GPUs.

    Raises:
        WordError: It asks for a number that neither one container nor the whole pod has.
    """
    wanted = asked(container)
    for name, count in counts.items():
        if count == wanted:
            return name
    if wanted == sum(counts.values()):
        return None
    allowed = sorted({*counts.values(), sum(counts.values())})
    raise WordError(
        f"init container {container.get('name')!r}: {wanted} {names.GPU_RESOURCE}; an init container borrows the GPUs "
        f"of one container or of the whole pod, so write {' or '.join(map(str, allowed))}, or no limit"
    )
