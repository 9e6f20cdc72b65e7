"""A pod's annotations, read into a Request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dradriver.allocator.request import Request, Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.policies.model import DEFAULTS, Policies
from dradriver.api.policies.workload_words import spelled_out
from dradriver.api.vocabulary import annotation_words, messages, vendor_words
from dradriver.api.vocabulary import container_requests as parts
from dradriver.api.vocabulary.container_requests import Asked
from dradriver.api.vocabulary.messages import shown
from dradriver.topology.vendors import NVIDIA, VENDORS

LONGEST_VALUE: Final = 256  # characters

ALIASES: Final = {
    names.ALIAS_PREFIX + "required": names.REQUIRED,
    names.ALIAS_PREFIX + "preferred": names.PREFERRED,
}
"""Annotations that mean the same as one of ours."""
_KNOWN: Final = (*annotation_words.KEYS, *ALIASES)
_WRITTEN: Final = frozenset((*names.NOTES, *names.RESULTS, *names.FORMER_RESULTS, names.RESTART, names.IDLE))


def is_written(key: str) -> bool:
    """Return whether an annotation is a note or result that the webhook or the controller writes."""
    return key in _WRITTEN


def parse(
    annotations: Mapping[str, str], asked: Mapping[str, Asked], policies: Policies = DEFAULTS, *, vendor: str = ""
) -> Request:
    """Return what the annotations ask for.

    Args:
        annotations: All annotations of the pod.
        asked: What each container asks for that wants any GPU or part of one, by container name, in pod order.
        policies: What names of policies and workloads stand for.
        vendor: Whose GPUs the containers' limits ask for; empty where they ask for none.

    Raises:
        WordError: An unknown key, a bad value or a contradiction.
    """
    own = _own(annotations)
    meant = _spelled_out(own, policies)
    fields, gpus = _read(meant)
    said = fields.setdefault("vendor", vendor or current_ledger().vendor or NVIDIA.word)
    if vendor and said != vendor:
        raise messages.contradicts(names.VENDOR, said, f"the containers' limits, which ask for GPUs of {vendor}")
    resource = VENDORS[said].resources[0]
    total = sum(map(parts.count, asked.values()))
    if gpus is not None and gpus != total:
        raise WordError(
            f"{names.GPUS}: '{gpus}' contradicts the containers' limits, which ask for {total} {resource}; "
            f"write one of the two"
        )
    if not total:
        raise WordError(
            f"the pod has {names.PREFIX} annotations but asks for no GPU: give a container a limit "
            f"{resource}: <count>, or write the annotation {names.GPUS}: <count>"
        )
    request = parts.request(meant, asked, about_sets=_about_sets(own, policies), fields=fields)
    vendor_words.check(fields, parts=not isinstance(request, Whole))
    return request


def _about_sets(own: Mapping[str, str], policies: Policies) -> dict[str, str]:
    """Return a pod's own words about sets of whole GPUs, with ``policy`` among them if what it stands for has any.

    A workload's do not count: they are what is best for such jobs, and for a part of a GPU nothing of it is.
    """
    said = _spelled_out({key: text for key, text in own.items() if key != names.WORKLOAD}, policies)
    kept = {key: text for key, text in said.items() if key in annotation_words.OF_SETS and text != "false"}
    return {
        key if key in own else names.POLICY: own.get(key, own.get(names.POLICY, text)) for key, text in kept.items()
    }


def aside(annotations: Mapping[str, str], policies: Policies = DEFAULTS) -> dict[str, str]:
    """Return the words that the choice of GPUs does not depend on: each of ``words.ASIDE``, as said or as by default.

    Raises:
        WordError: An unknown key, or a value that ``parse`` refuses.
    """
    meant = _spelled_out(_own(annotations), policies)
    return {key: annotation_words.said(meant, key) or allowed[0] for key, allowed in annotation_words.ASIDE.items()}


def idle_timeout_s(annotations: Mapping[str, str], policies: Policies = DEFAULTS) -> int | None:
    """Return after how many seconds without work the GPUs are given back; None where nobody says so.

    Raises:
        WordError: An unknown key, or a value that ``parse`` refuses.
    """
    found: int | None = annotation_words.said(_spelled_out(_own(annotations), policies), names.IDLE_TIMEOUT)
    return found


def max_duration_s(annotations: Mapping[str, str], policies: Policies = DEFAULTS) -> int | None:
    """Return for how long a pod may run, seconds, as it or its policy says; None for any time.

    Raises:
        WordError: An unknown key, or a value that ``parse`` refuses.
    """
    found: int | None = annotation_words.said(_spelled_out(_own(annotations), policies), names.MAX_DURATION)
    return found


def check_words(annotations: Mapping[str, str], policies: Policies = DEFAULTS) -> None:
    """Raise unless every word can be read, however many GPUs the pod has.

    Raises:
        WordError: An unknown key, a bad value or a contradiction among the words.
    """
    _read(_spelled_out(_own(annotations), policies))


def _read(meant: Mapping[str, str]) -> tuple[dict[str, Any], int | None]:
    """Return the fields of a Request that words give, without its containers, and the value of ``gpus``."""
    fields = annotation_words.fields(meant)
    vendor_words.check(fields, parts=parts.of_words(meant) is not None)
    return fields, annotation_words.said(meant, names.GPUS)


def _own(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the author's words by their own names.

    Raises:
        WordError: An unknown key, a value that is too long, or an alias that contradicts its word.
    """
    said: dict[str, str] = {}
    for key, value in annotations.items():
        if not names.is_ours(key) or key in _WRITTEN:
            continue
        known = ALIASES.get(key, key)
        if known not in annotation_words.BY_KEY:
            raise messages.unknown(key, _KNOWN)
        if len(value) > LONGEST_VALUE:
            raise WordError(f"{key}: {len(value)} characters; a value has at most {LONGEST_VALUE}")
        word = annotation_words.BY_KEY[known]
        if word.about is annotation_words.About.GANG:  # nothing of it is in the request
            word.read(known, value)
        elif known != key and annotations.get(known, value) != value:
            raise messages.contradicts(key, value, f"{known}: {shown(annotations[known])}")
        else:
            said[known] = value
    return said


def _spelled_out(own: Mapping[str, str], policies: Policies) -> dict[str, str]:
    """Return the words with what policies stand for, in the order in which they are read.

    Raises:
        WordError: What ``spelled_out`` refuses.
    """
    return dict(sorted(spelled_out(own, policies).items(), key=lambda item: annotation_words.ORDER[item[0]]))
