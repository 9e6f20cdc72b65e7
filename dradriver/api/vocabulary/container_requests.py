"""What each container requests, whole GPUs or fractions, and how these requests become one request of the pod.

The webhook calls it. A pod requests one kind of device: whole GPUs, shares or MIG slices. If an annotation names a
fraction, each container gets that fraction, as often as its limit ``nvidia.com/gpu`` says. Without such an annotation
the limits themselves name the fraction (``container_limits``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from dradriver.allocator.request import Amount, Mig, Request, Share, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary import annotation_words, messages
from dradriver.api.vocabulary.annotation_words import About, Values
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.values import MOST_GPUS

Asked = int | Amount | tuple[str, ...]
"""What one container asks for: a number of whole GPUs, a share of one, or MIG slices by their profiles' names."""

_SHARES: Final = (names.SHARE, names.SHARE_MEMORY, names.SHARE_CORES)
COMMON: Final = frozenset(word.field for word in annotation_words.OF_REQUESTS if word.about is About.GPU)
"""Fields of a request that parts have as well as whole GPUs."""


def of_words(values: Values) -> Amount | str | None:
    """Return the share or MIG profile that a pod's annotations request for each of its containers.

    None if the annotations request no fraction.

    Raises:
        WordError: A value is bad, or annotations contradict each other.
    """
    meant = values.texts
    share, memory, cores, profile = map(values.get, (*_SHARES, names.MIG_PROFILE))
    said = [key for key in _SHARES if key in meant]
    if profile is not None and said:
        raise messages.contradicts(names.MIG_PROFILE, meant[names.MIG_PROFILE], said[0])
    if share is not None and len(said) > 1:
        raise messages.contradicts(names.SHARE, meant[names.SHARE], said[1])
    return profile or (Amount(share or cores or 0, memory or 0) if said else None)


def request(values: Values, asked: Mapping[str, Asked], fields: dict[str, Any]) -> Request:
    """Return the request of a pod from its containers' requests: whole GPUs, shares or MIG slices.

    Args:
        values: The values of the pod's annotations.
        asked: The request of each container that requests something, by container name; at least one.
        fields: Fields of the pod's request that the annotations set.

    Raises:
        WordError: The pod has different kinds of requests, or more devices than a claim can have.
    """
    # 1. Annotations can say which fraction each container gets, and limits how many. ``fraction``: a share, the name of
    # a MIG profile, or None.
    annotation_texts, fraction = values.texts, of_words(values)
    asks = (
        asked
        if fraction is None
        else {name: _with_fraction(name, ask, fraction, annotation_texts) for name, ask in asked.items()}
    )
    if (total := sum(map(count, asks.values()))) > MOST_GPUS:
        raise WordError(f"The pod requests {total} GPUs. A claim can have at most {MOST_GPUS}. Use several pods.")

    # 2. One kind of request: GPUs are numbers, shares are amounts, MIG slices are tuples of profiles.
    numbers = tuple(ask for ask in asks.values() if isinstance(ask, int))
    amounts = tuple(ask for ask in asks.values() if isinstance(ask, Amount))
    profiles = tuple(ask for ask in asks.values() if isinstance(ask, tuple))
    if len(asks) not in (len(numbers), len(amounts), len(profiles)):
        descriptions = ", ".join(f"container {name[:63]!r}: {described(ask)}" for name, ask in asks.items())
        raise WordError(
            f"The containers request different kinds of devices ({descriptions}). All containers of a pod must "
            f"request whole GPUs, or shares, or MIG slices. Use one pod for each kind."
        )
    if numbers:
        return Whole(containers=numbers, **fields)
    # Fractions have only some of the fields: those about a GPU, not about sets of GPUs.
    common = {name: value for name, value in fields.items() if name in COMMON}
    return Share(amounts=amounts, **common) if amounts else Mig(profiles=profiles, **common)


def count(asked: Asked) -> int:
    """Return how many devices of the claim a container's request needs.

    For example, 2 for two GPUs or for two MIG slices, and 1 for a share.
    """
    if isinstance(asked, int):
        return asked
    return 1 if isinstance(asked, Amount) else len(asked)


def request_names(asked: Mapping[str, Asked]) -> dict[str, tuple[str, ...]]:
    """Return the names of each container's requests in the claim.

    If a container has one request, the request has the container's name. If it has several MIG slices, each slice has a
    request with a number, such as ``main-1`` and ``main-2``. The webhook writes the names into the containers before
    GPUs are chosen, and the controller into the claim. Both use this function. All names are DNS labels, as containers'
    names are, and all are different.

    Args:
        asked: What each container requests, by name in pod order.
    """
    requests: dict[str, tuple[str, ...]] = {}
    taken = set(asked)
    for name, ask in asked.items():
        # Whole GPUs are one request with a count. Each MIG slice is a request of its own.
        if isinstance(ask, int) or count(ask) == 1:
            requests[name] = (name,)
            continue
        numbered_names = (f"{name[:58]}-{number}" for number in itertools.count(1))
        names_of_container = tuple(
            itertools.islice(
                (numbered_name for numbered_name in numbered_names if numbered_name not in taken), count(ask)
            )
        )
        taken.update(names_of_container)
        requests[name] = names_of_container
    return requests


def described(asked: Asked) -> str:
    """Return a container's request as text for messages, such as ``2 GPUs``.

    Other examples: ``25 % of a GPU's compute and 10240 MiB``, ``MIG 1g.10gb, 1g.10gb``.
    """
    if isinstance(asked, int):
        return f"{asked} GPU{'s' if asked > 1 else ''}"
    if not isinstance(asked, Amount):
        return f"MIG {', '.join(asked)}"
    cores, memory = f"{asked.cores} % of a GPU's compute", f"{asked.memory_mib} MiB of a GPU"
    if asked.cores and asked.memory_mib:
        return f"{cores} and {asked.memory_mib} MiB"
    return cores if asked.cores else memory


def _with_fraction(name: str, asked: Asked, fraction: Amount | str, annotation_texts: Mapping[str, str]) -> Asked:
    """Return a container's request, with each requested GPU replaced by the fraction in the annotations.

    Args:
        name: The container's name.
        asked: What the container's limits request.
        fraction: The share, or the name of the MIG profile, that the annotations name.
        annotation_texts: The texts of the annotations, for the message.

    Raises:
        WordError: The annotations contradict the container's limits.
    """
    if isinstance(asked, int):
        if isinstance(fraction, str):
            return (fraction,) * asked
        if asked == 1:
            return fraction
    elif asked == (fraction if isinstance(fraction, Amount) else (fraction,) * count(asked)):
        return asked
    key = next(key for key in annotation_words.OF_PARTS if key in annotation_texts)
    advice = (
        "Write 1 GPU for each container that has a share." if isinstance(asked, int) else "Write only one of the two."
    )
    raise WordError(
        f"{key}: {shown(annotation_texts[key])} contradicts container {name[:63]!r}, which requests "
        f"{described(asked)}. {advice}"
    )
