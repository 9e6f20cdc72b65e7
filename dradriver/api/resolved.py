"""The resolved request: what the webhook made of a pod's words and limits, as a versioned note on the pod.

Words are read once, at admission. The controller reads this note and never a word, so that both always mean the same;
a note that an author sent is overwritten. Whoever can write it while the webhook is away gains nothing: what a tenant
may have is decided elsewhere, and a note that is damaged costs that pod its place, nobody else anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Request
from dradriver.api import names
from dradriver.api.errors import WordError

VERSION: Final = 1
MOST_GPUS: Final = 32  # AllocationResultsMaxSize of resource.k8s.io/v1
_LONGEST: Final = 16_384  # characters; a pod of 100 GPU containers needs half of that


class Resolved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pod asks for.

    Attributes:
        version: Of this note's form.
        containers: GPUs of each container that wants any, by name in pod order.
        request: What the allocator is asked; its ``containers`` are the values of the above.
    """

    version: int = VERSION
    containers: dict[str, int]
    request: Request


def write(resolved: Resolved) -> str:
    """Return the text of the note."""
    return msgspec.json.encode(resolved).decode()


def read(annotations: Mapping[str, str]) -> Resolved:
    """Return what the webhook noted.

    Raises:
        WordError: There is no note, or it was changed into something that is none.
    """
    text = annotations.get(names.REQUEST)
    if text is None:
        raise WordError(f"annotation {names.REQUEST}, which the webhook writes, is missing; create the pod anew")
    try:
        if len(text) > _LONGEST:
            raise WordError(f"it has {len(text)} characters, more than {_LONGEST}")
        resolved = msgspec.json.decode(text, type=Resolved)
        _check(resolved)
    except (WordError, msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise WordError(f"annotation {names.REQUEST} was changed: {error}; create the pod anew") from None
    return resolved


def _check(resolved: Resolved) -> None:
    request, counts = resolved.request, tuple(resolved.containers.values())
    if resolved.version != VERSION:
        raise WordError(f"its version is {resolved.version}, and {VERSION} is the one that is known")
    if not counts or min(counts) < 1 or sum(counts) > MOST_GPUS or counts != request.containers:
        raise WordError(f"it asks for no number of GPUs from 1 to {MOST_GPUS}")
    if not all(math.isfinite(rate) and rate >= 0 for rate in (request.min_bandwidth_gbps, request.min_busbw_gbps)):
        raise WordError("it has a bandwidth that is none")
