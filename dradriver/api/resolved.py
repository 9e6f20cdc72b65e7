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

from dradriver.allocator.request import Constraint, Request, Weights
from dradriver.api import names, values
from dradriver.api.annotations import nccl, parse
from dradriver.api.errors import WordError
from dradriver.api.messages import shown
from dradriver.api.policies.model import DEFAULTS, Policies
from dradriver.api.values import MOST_GPUS

VERSION: Final = 1
_LONGEST: Final = 16_384  # characters; a pod of 100 GPU containers needs half of that


class Resolved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pod asks for.

    Attributes:
        version: Of this note's form.
        containers: GPUs of each container that wants any, by name in pod order.
        request: What the allocator is asked; its ``containers`` are the values of the above.
        nccl: What NCCL is told; unset where the author does not say.
    """

    version: int = VERSION
    containers: dict[str, int]
    request: Request
    nccl: str | msgspec.UnsetType = msgspec.UNSET


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Resolved)


def resolve(annotations: Mapping[str, str], counts: Mapping[str, int], policies: Policies = DEFAULTS) -> Resolved:
    """Return what a pod's words and its containers' GPUs come to; arguments and errors are those of ``parse``.

    What names of policies and workloads stand for is in it; the weights are not: they are the administrator's, and the
    controller adds those in force when it chooses.
    """
    told = nccl(annotations, policies)
    return Resolved(
        containers=dict(counts),
        request=parse(annotations, counts, policies),
        nccl=msgspec.UNSET if told == values.NCCL_AUTO else told,
    )


def write(resolved: Resolved) -> str:
    """Return the text of the note."""
    return _ENCODER.encode(resolved).decode()


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
        resolved = _DECODER.decode(text)
        _check(resolved)
    except (WordError, ValueError, RecursionError) as error:
        told = str(error) if isinstance(error, WordError) else shown(str(error))
        raise WordError(f"annotation {names.REQUEST} was changed: {told}; create the pod anew") from None
    return resolved


def _check(resolved: Resolved) -> None:
    """Refuse what ``parse`` never makes: the allocator and the claim's CEL take these values as they are."""
    request, counts = resolved.request, tuple(resolved.containers.values())
    if resolved.version != VERSION:
        raise WordError(f"its version is {resolved.version}, and {VERSION} is the one that is known")
    if not counts or min(counts) < 1 or sum(counts) > MOST_GPUS or counts != request.containers:
        raise WordError(f"it asks for no number of GPUs from 1 to {MOST_GPUS}")
    if not all(math.isfinite(rate) and rate >= 0 for rate in (request.min_bandwidth_gbps, request.min_busbw_gbps)):
        raise WordError("it has a bandwidth that is none")
    if not 0 <= request.min_memory_mib <= values.MOST_MEMORY_MIB:
        raise WordError("it has an amount of memory that is none")
    if request.max_cross_nvswitch_gpus is not None and not 0 <= request.max_cross_nvswitch_gpus <= 99:
        raise WordError("its max_cross_nvswitch_gpus is no number from 0 to 99")
    if request.product and values.product(request.product) is None:
        raise WordError("it has a product that is none")
    if request.architecture and values.architecture(request.architecture) is None:
        raise WordError("it has an architecture that is none")
    if max(len(request.required), len(request.preferred)) > len(Constraint):
        raise WordError("it has a constraint twice")
    if resolved.nccl is not msgspec.UNSET and values.nccl(resolved.nccl) is None:
        raise WordError("it has something for NCCL that is none")
    if request.include or request.exclude or request.weights != Weights():
        raise WordError("it has something that no word says")
