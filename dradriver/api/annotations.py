"""A pod's annotations, read into a Request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.allocator.policies import POLICIES
from dradriver.allocator.request import Constraint, Request, Strategy
from dradriver.api import figures, names
from dradriver.api.errors import WordError
from dradriver.api.figures import hint, shown

MOST_GPUS: Final = 32  # AllocationResultsMaxSize of resource.k8s.io/v1

_CONSTRAINTS: Final = {word.value: word for word in Constraint} | {"nvlink-domain": Constraint.NVLINK}
_ALIASES: Final = {
    names.ALIAS_PREFIX + "required": names.REQUIRED,
    names.ALIAS_PREFIX + "preferred": names.PREFERRED,
}
_KNOWN: Final = (*names.WISHES, *names.NOTES, *names.RESULTS)


def has_wish(annotations: Mapping[str, str]) -> bool:
    """Return whether the annotations hold any word of ours, known or not."""
    return any(key.startswith((names.PREFIX, names.ALIAS_PREFIX)) for key in annotations)


def parse(annotations: Mapping[str, str], counts: Mapping[str, int]) -> Request:
    """Return what the annotations ask for.

    Args:
        annotations: All annotations of the pod.
        counts: GPUs of each container that wants any, by container name, in pod order.

    Raises:
        WordError: An unknown key, a bad value or a contradiction.
    """
    wishes = _wishes(annotations)
    required: list[Constraint] = []
    strategy: Strategy | None = None
    if (policy := wishes.get(names.POLICY)) is not None:
        word, strategy = figures.policy(policy)
        required += POLICIES[word]
    required += _ladder(names.REQUIRED, wishes.get(names.REQUIRED))
    if (flag := wishes.get(names.REQUIRE_NVLINK)) is not None:
        required += [Constraint.NVLINK] if figures.flag(names.REQUIRE_NVLINK, flag) else []
    if (text := wishes.get(names.STRATEGY)) is not None:
        asked_strategy = figures.strategy(names.STRATEGY, text)
        if strategy not in (None, asked_strategy):
            raise WordError(f"{names.STRATEGY}: {asked_strategy} contradicts {names.POLICY}; write one of the two")
        strategy = asked_strategy
    kinds = figures.read(wishes)
    preferred = _ladder(names.PREFERRED, wishes.get(names.PREFERRED))
    if (text := wishes.get(names.GPUS)) is not None:
        asked = gpu_number(names.GPUS, text)
        if asked != sum(counts.values()):
            raise WordError(
                f"{names.GPUS}: {text!r} contradicts the containers' limits, which ask for {sum(counts.values())} "
                f"{names.GPU_RESOURCE}; write one of the two"
            )
    if not counts:
        raise WordError(
            f"the pod has {names.PREFIX} annotations but asks for no GPU: give a container a limit "
            f"{names.GPU_RESOURCE}: <count>, or write the annotation {names.GPUS}: <count>"
        )
    if sum(counts.values()) > MOST_GPUS:
        raise WordError(
            f"{sum(counts.values())} GPUs in one pod: a claim can hold {MOST_GPUS} at most; use several pods"
        )
    return Request(
        containers=tuple(counts.values()),
        required=tuple(dict.fromkeys(required)),
        preferred=tuple(dict.fromkeys(preferred)),
        strategy=strategy or Strategy.BEST_FIT,
        **kinds,
    )


def gpu_number(key: str, text: str) -> int:
    """Return a count of GPUs written as text under ``key``.

    Raises:
        WordError: Not a whole number from 1 to 32.
    """
    # str.isdigit alone admits digits of other scripts
    if not (text.isascii() and text.isdigit() and len(text) <= 4) or not 1 <= int(text) <= MOST_GPUS:
        raise WordError(f"{key}: {shown(text)} is no count of GPUs; write a whole number from 1 to {MOST_GPUS}")
    return int(text)


def write_counts(counts: Mapping[str, int]) -> str:
    """Return the note that keeps each container's GPUs once the limits are gone from the pod."""
    return msgspec.json.encode(dict(counts)).decode()


def read_counts(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return each container's GPUs from the webhook's note; empty without one.

    Raises:
        WordError: The note was changed into something that is none.
    """
    text = annotations.get(names.CONTAINERS)
    if text is None:
        return {}
    try:
        counts = msgspec.json.decode(text, type=dict[str, int])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise WordError(f"{names.CONTAINERS}: {shown(text)}: {error}; remove this annotation") from None
    for count in counts.values():
        gpu_number(names.CONTAINERS, str(count))
    return counts


def _wishes(annotations: Mapping[str, str]) -> dict[str, str]:
    wishes: dict[str, str] = {}
    for key, value in sorted(annotations.items()):
        if not key.startswith((names.PREFIX, names.ALIAS_PREFIX)):
            continue
        known = _ALIASES.get(key, key)
        if known not in _KNOWN:
            raise _unknown(key)
        if wishes.setdefault(known, value) != value:
            raise WordError(f"{key}: {shown(value)} contradicts {known}: {shown(wishes[known])}; write one of the two")
    return wishes


def _ladder(key: str, text: str | None) -> list[Constraint]:
    if text is None:
        return []
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in _CONSTRAINTS:
            raise _bad(key, word, _CONSTRAINTS)
    return [_CONSTRAINTS[word] for word in words]


def _bad(key: str, value: str, allowed: Mapping[str, object] | tuple[str, ...]) -> WordError:
    return WordError(f"{key}: {shown(value)} is not allowed; write one of {', '.join(allowed)}{hint(value, allowed)}")


def _unknown(key: str) -> WordError:
    allowed = [*names.WISHES, *_ALIASES]
    return WordError(f"annotation {shown(key)} is unknown; known are {', '.join(allowed)}{hint(key, allowed)}")
