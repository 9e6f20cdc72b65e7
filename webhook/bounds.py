"""The largest sizes of the parts of a pod: far more than real pods have, and cheap to read.

``create``, ``update`` and ``translate`` check them before they read other fields of a pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw

from dradriver.api.base.errors import WordError
from webhook import pod_view

CONTAINERS: Final = 256
CLAIMS: Final = 256
GATES: Final = 64
NAME: Final = 63  # characters of a container's name: as many as Kubernetes allows
TERMS: Final = 256
TOLERATIONS: Final = 256
BYTES: Final = 1 << 17  # of JSON: an affinity, all tolerations, one container's limits
_TOO_SHORT_TO_EXCEED: Final = 512  # bytes that hold no more entries than any bound allows


class _Anything(msgspec.Struct, frozen=True, gc=False):
    pass


_LIST: Final = msgspec.json.Decoder(list[_Anything] | None)


def check(pod: pod_view.Pod, live: pod_view.Pod | None = None) -> None:
    """Raise an error if a part of a pod is too large.

    In an update, a part that is too large in the stored pod already may keep its size.

    Args:
        pod: The pod as sent.
        live: The pod as stored; None for a new pod.

    Raises:
        WordError: A part is too large; the message names it.
    """
    for path, size, most, unit in _parts_beyond_bounds(pod):
        was = () if live is None else [size for beyond, size, *_ in _parts_beyond_bounds(live) if beyond == path]
        if size > max(was, default=0):
            raise WordError(
                f"{path}: {size} {unit}, and a pod whose GPUs the driver chooses can have at most {most}. Make it "
                f"smaller."
            )


def _parts_beyond_bounds(pod: pod_view.Pod) -> Iterator[tuple[str, int, int, str]]:
    """Yield path, size, bound and unit of each part of a pod that is larger than its bound.

    A list in the spec is decoded only to count its entries. If its JSON has too many bytes, it is not decoded, so that
    nothing large is decoded. If its JSON is short, it is not decoded either, because it cannot have too many entries.

    Raises:
        WordError: JSON that is decoded is not of the expected type, so the webhook refuses the pod.
    """
    spec = pod.spec
    containers = (*pod.containers, *pod.init_containers)
    if len(containers) > CONTAINERS:
        yield "spec.containers and spec.initContainers", len(containers), CONTAINERS, "entries"
        containers = containers[:CONTAINERS]
    if spec.resource_claims and len(spec.resource_claims) > CLAIMS:
        yield "spec.resourceClaims", len(spec.resource_claims), CLAIMS, "entries"
    if spec.scheduling_gates and len(spec.scheduling_gates) > GATES:
        yield "spec.schedulingGates", len(spec.scheduling_gates), GATES, "entries"
    if (length := _json_bytes(spec.affinity)) > BYTES:
        yield "spec.affinity", length, BYTES, "bytes of JSON"
    elif (
        length > _TOO_SHORT_TO_EXCEED
        and (selector := pod_view.selector(spec))
        and len(selector.node_selector_terms) > TERMS
    ):
        yield "spec.affinity.nodeAffinity, terms", len(selector.node_selector_terms), TERMS, "entries"
    if (length := _json_bytes(spec.tolerations)) > BYTES:
        yield "spec.tolerations", length, BYTES, "bytes of JSON"
    elif (
        length > _TOO_SHORT_TO_EXCEED
        # ``where`` is a prefix of the error message.
        and len(entries := pod_view.decode(_LIST, spec.tolerations, where="") or ()) > TOLERATIONS
    ):
        yield "spec.tolerations", len(entries), TOLERATIONS, "entries"
    for container in containers:
        if len(container.name) > NAME:
            yield f"container {container.name[:NAME]!r}: name", len(container.name), NAME, "characters"
        resources = container.resources
        if resources is None:
            continue
        if resources.claims and len(resources.claims) > CLAIMS:
            where = f"container {container.name[:63]!r}: resources.claims"
            yield where, len(resources.claims), CLAIMS, "entries"
        if (length := max(_json_bytes(resources.limits), _json_bytes(resources.requests))) > BYTES:
            yield f"container {container.name[:63]!r}: resources", length, BYTES, "bytes of JSON"


def _json_bytes(raw: Raw) -> int:
    return len(memoryview(raw))
