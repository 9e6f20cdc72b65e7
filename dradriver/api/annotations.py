"""A pod's annotations, read into a Request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from dradriver.allocator.request import Constraint, Request
from dradriver.api import gangs, messages, names, parts, values
from dradriver.api.errors import WordError
from dradriver.api.messages import shown
from dradriver.api.parts import Asked
from dradriver.api.policies.model import DEFAULTS, Policies
from dradriver.api.policies.words import spelled_out

LONGEST_VALUE: Final = 256  # characters

_PREFIXES: Final = (names.PREFIX, names.ALIAS_PREFIX)
_ALIASES: Final = {
    names.ALIAS_PREFIX + "required": names.REQUIRED,
    names.ALIAS_PREFIX + "preferred": names.PREFERRED,
}
_ORDER: Final = {key: i for i, key in enumerate(names.WISHES)}  # in which words are read
_KNOWN: Final = (*names.WISHES, *names.NOTED, *_ALIASES)
_WRITTEN: Final = frozenset((*names.NOTES, *names.RESULTS))


# What says something of a set of whole GPUs, and nothing of a part.
_OF_SETS: Final = frozenset(
    (
        names.POLICY, names.REQUIRED, names.PREFERRED, names.REQUIRE_NVLINK, names.MIN_BANDWIDTH, names.MIN_BUSBW,
        names.MAX_CROSS_NVSWITCH, names.PREFER_SAME_NUMA,
    )
)  # fmt: skip


class _Field(NamedTuple):
    """A field of a Request, what reads its value, and what a value that is none is not."""

    name: str
    read: Callable[[str], object | None]
    what: str


_FIELDS: Final = {
    names.MIN_BANDWIDTH: _Field("min_bandwidth_gbps", values.rate_gbps, messages.RATE),
    names.MIN_BUSBW: _Field("min_busbw_gbps", values.rate_gbps, messages.RATE),
    names.PRODUCT: _Field("product", values.product, messages.PRODUCT),
    names.ARCHITECTURE: _Field("architecture", values.architecture, messages.ARCHITECTURE),
    names.MIN_MEMORY: _Field("min_memory_mib", values.memory_mib, messages.MEMORY),
    names.MIN_DRIVER: _Field("min_driver", values.version, messages.DRIVER),
    names.MIN_CUDA: _Field("min_cuda", values.version, messages.CUDA),
    names.MAX_CROSS_NVSWITCH: _Field("max_cross_nvswitch_gpus", values.few, messages.FEW),
}


def is_ours(key: str) -> bool:
    """Return whether an annotation is under one of our prefixes, known or not."""
    return key.startswith(_PREFIXES)


def is_written(key: str) -> bool:
    """Return whether an annotation is a note or result that the webhook or the controller writes."""
    return key in _WRITTEN


def has_wish(annotations: Mapping[str, str]) -> bool:
    """Return whether any annotation is under one of our prefixes, known or not."""
    return any(is_ours(key) for key in annotations)


def parse(annotations: Mapping[str, str], asked: Mapping[str, Asked], policies: Policies = DEFAULTS) -> Request:
    """Return what the annotations ask for.

    Args:
        annotations: All annotations of the pod.
        asked: What each container asks for that wants any GPU or part of one, by container name, in pod order.
        policies: What names of policies and workloads stand for.

    Raises:
        WordError: An unknown key, a bad value or a contradiction.
    """
    own = _own(annotations)
    words = _spelled_out(own, policies)
    fields, gpus = _read(words)
    total = sum(map(parts.count, asked.values()))
    if gpus is not None and gpus != total:
        raise WordError(
            f"{names.GPUS}: '{gpus}' contradicts the containers' limits, which ask for {total} {names.GPU_RESOURCE}; "
            f"write one of the two"
        )
    if not total:
        raise WordError(
            f"the pod has {names.PREFIX} annotations but asks for no GPU: give a container a limit "
            f"{names.GPU_RESOURCE}: <count>, or write the annotation {names.GPUS}: <count>"
        )
    return parts.request(words, asked, about_sets=_about_sets(own, policies), fields=fields)


def _about_sets(own: Mapping[str, str], policies: Policies) -> dict[str, str]:
    """Return those of a pod's own words that say something of a set of whole GPUs, or whose policy does.

    A workload's do not count: they are what is best for such jobs, and for a part of a GPU nothing of it is.
    """
    said = _spelled_out({key: text for key, text in own.items() if key != names.WORKLOAD}, policies)
    found = {key: text for key, text in said.items() if key in _OF_SETS and text != "false"}
    return {
        key if key in own else names.POLICY: own.get(key, own.get(names.POLICY, text)) for key, text in found.items()
    }


ASIDE: Final = {
    names.NCCL: values.NCCL,
    names.PLACEMENT: values.PLACEMENTS,
    names.WHEN_FULL: values.WHEN_FULL,
}
"""Words that the choice of GPUs does not depend on, and what they may say; the first is the default."""


def aside(annotations: Mapping[str, str], policies: Policies = DEFAULTS) -> dict[str, str]:
    """Return the words that the choice of GPUs does not depend on: each of ``ASIDE``, as said or as by default.

    Raises:
        WordError: An unknown key, or a value that ``parse`` refuses.
    """
    words = _spelled_out(_own(annotations), policies)
    return {key: _aside(key, words.get(key, allowed[0])) for key, allowed in ASIDE.items()}


def shared_claim(annotations: Mapping[str, str]) -> str | None:
    """Return the name of the claim that the pod shares with others; None where it has one of its own.

    Raises:
        WordError: It is no name for such a claim.
    """
    text = annotations.get(names.SHARED_CLAIM)
    if text is not None and values.set_name(text) is None:
        raise messages.is_no(names.SHARED_CLAIM, text, messages.SET_NAME)
    return text


def _aside(key: str, text: str) -> str:
    if text not in ASIDE[key]:
        raise messages.not_one_of(key, text, ASIDE[key])
    return text


def check_words(annotations: Mapping[str, str], policies: Policies = DEFAULTS) -> None:
    """Return if every word can be read, however many GPUs the pod has.

    Raises:
        WordError: An unknown key, a bad value or a contradiction among the words.
    """
    _read(_spelled_out(_own(annotations), policies))


def idle_timeout_s(annotations: Mapping[str, str]) -> int | None:
    """Return after how many seconds without work a pod's GPUs may be given back; None where nothing is said.

    Raises:
        WordError: It is no duration.
    """
    text = annotations.get(names.IDLE_TIMEOUT)
    if text is None:
        return None
    seconds = values.duration_s(text)
    if seconds is None:
        raise messages.is_no(names.IDLE_TIMEOUT, text, messages.IDLE)
    return seconds


def gpu_number(key: str, text: str) -> int:
    """Return a count of GPUs written as text under ``key``.

    Raises:
        WordError: Not a whole number from 1 to 32.
    """
    count = values.gpu_count(text)
    if count is None:
        raise messages.is_no(key, text, messages.GPUS)
    return count


def _read(words: Mapping[str, str]) -> tuple[dict[str, Any], int | None]:
    """Return the fields of a Request that words give, without its containers, and the value of ``gpus``."""
    required: list[Constraint] = []
    fields: dict[str, Any] = {}
    gpus: int | None = None
    for key, text in words.items():
        if key == names.REQUIRED:
            required += _ladder(key, text)
        elif key == names.PREFERRED:
            fields["preferred"] = tuple(dict.fromkeys(_ladder(key, text)))
        elif key == names.REQUIRE_NVLINK:
            required += [Constraint.NVLINK] if _flag(key, text) else []
        elif key == names.PREFER_SAME_NUMA:
            fields["prefer_same_numa"] = _flag(key, text)
        elif key == names.GPUS:
            gpus = gpu_number(key, text)
        elif key in ASIDE:
            _aside(key, text)
        elif key == names.STRATEGY:
            strategy = values.strategy(text)
            if strategy is None:
                raise messages.not_one_of(key, text, values.STRATEGIES)
            fields["strategy"] = strategy
        elif key in _FIELDS:
            field = _FIELDS[key]
            value = field.read(text)
            if value is None:
                raise messages.is_no(key, text, field.what)
            fields[field.name] = value
    parts.of_words(words)
    shared_claim(words)
    if required:
        fields["required"] = tuple(dict.fromkeys(required))
    return fields, gpus


def _own(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the author's words by their own names.

    Raises:
        WordError: An unknown key, a value that is too long, or an alias that contradicts its word.
    """
    found: dict[str, str] = {}
    for key, value in annotations.items():
        if not key.startswith(_PREFIXES) or key in _WRITTEN:
            continue
        known = _ALIASES.get(key, key)
        if known not in _ORDER and known not in names.NOTED:
            raise messages.unknown(key, _KNOWN)
        if len(value) > LONGEST_VALUE:
            raise WordError(f"{key}: {len(value)} characters; a value has at most {LONGEST_VALUE}")
        if known in names.OF_GANGS:
            gangs.gang({known: value})
        elif known == names.IDLE_TIMEOUT:
            idle_timeout_s({known: value})
        elif known != key and annotations.get(known, value) != value:
            raise messages.contradicts(key, value, f"{known}: {shown(annotations[known])}")
        else:
            found[known] = value
    return found


def _spelled_out(own: Mapping[str, str], policies: Policies) -> dict[str, str]:
    """Return the words with what policies stand for, in the order in which they are read.

    Raises:
        WordError: What ``spelled_out`` refuses.
    """
    return dict(sorted(spelled_out(own, policies).items(), key=lambda item: _ORDER[item[0]]))


def _ladder(key: str, text: str) -> list[Constraint]:
    rungs = [word.strip() for word in text.split(",")]
    for rung in rungs:
        if rung not in values.CONSTRAINTS:
            raise messages.not_one_of(key, rung, values.CONSTRAINTS)
    return [values.CONSTRAINTS[rung] for rung in rungs]


def _flag(key: str, text: str) -> bool:
    flag = values.flag(text)
    if flag is None:
        raise messages.not_one_of(key, text, values.FLAGS)
    return flag
