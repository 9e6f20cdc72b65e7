"""What a container asks for, whole GPUs or a part, and how such asks become one request.

A pod asks for one kind of thing: whole GPUs, shares or MIG slices. A word about parts says which part each container
gets whose limit says how many GPUs; without such a word the limits say it themselves (``container_limits``).
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
    """Return the share or MIG profile that words request for a container; None where they request no part.

    Raises:
        WordError: A bad value, or words that contradict each other.
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
    """Return the request of a pod from what its containers request: whole GPUs, shares or MIG slices.

    Args:
        values: The author's annotations, by their own names.
        asked: What each container requests, for those that request something; at least one.
        fields: Fields of the request that the annotations give.

    Raises:
        WordError: Different kinds of requests in one pod, or more devices than a claim can hold.
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
        raise WordError(f"{total} GPUs in one pod: a claim can hold {MOST_GPUS} at most; use several pods")

    # 2. One kind of request: GPUs are numbers, shares are amounts, MIG slices are tuples of profiles.
    numbers = tuple(ask for ask in asks.values() if isinstance(ask, int))
    amounts = tuple(ask for ask in asks.values() if isinstance(ask, Amount))
    profiles = tuple(ask for ask in asks.values() if isinstance(ask, tuple))
    if len(asks) not in (len(numbers), len(amounts), len(profiles)):
        descriptions = "; ".join(f"container {name[:63]!r}: {described(ask)}" for name, ask in asks.items())
        raise WordError(f"{descriptions}: a pod asks for whole GPUs, for shares or for MIG slices; use several pods")
    if numbers:
        return Whole(containers=numbers, **fields)
    # Fractions have only some of the fields: those about a GPU, not about sets of GPUs.
    common = {name: value for name, value in fields.items() if name in COMMON}
    return Share(amounts=amounts, **common) if amounts else Mig(profiles=profiles, **common)


def count(asked: Asked) -> int:
    """Return how many devices of the claim a container gets for what it asks."""
    if isinstance(asked, int):
        return asked
    return 1 if isinstance(asked, Amount) else len(asked)


def request_names(asked: Mapping[str, Asked]) -> dict[str, tuple[str, ...]]:
    """Return the names of the claim's requests of each container: its own, or several numbered ones.

    The webhook writes them into the containers before anything is chosen, and the controller into the claim: both have
    them from here. All are DNS labels, as containers' names are, and no two are equal.

    Args:
        asked: What each container asks for, by name in pod order.
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
    """Return a container's request in words.

    Such as ``2 GPUs``, ``25 % of a GPU's compute and 10240 MiB``, ``MIG 1g.10gb, 1g.10gb``.
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
    """Return what a container gets that asks for GPUs where words say which part of one."""
    if isinstance(asked, int):
        if isinstance(fraction, str):
            return (fraction,) * asked
        if asked == 1:
            return fraction
    elif asked == (fraction if isinstance(fraction, Amount) else (fraction,) * count(asked)):
        return asked
    key = next(key for key in annotation_words.OF_PARTS if key in annotation_texts)
    advice = "; write 1 GPU for each container that has a share" if isinstance(asked, int) else "; write one of the two"
    raise WordError(
        f"{key}: {shown(annotation_texts[key])} contradicts container {name[:63]!r}, {described(asked)}{advice}"
    )
