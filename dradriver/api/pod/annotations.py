"""A pod's annotations, read into a Request."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from dradriver.allocator.request import Request, Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.gangs import gang_annotations
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.policies.policy_sections import DEFAULTS, Policies
from dradriver.api.policies.workload_words import SpelledOut
from dradriver.api.vocabulary import annotation_words, container_requests, messages, vendor_words
from dradriver.api.vocabulary.annotation_words import About, Values
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
_LIMITS: Final = "the containers' limits, which ask for parts of a GPU"
_WRITTEN: Final = frozenset((*names.NOTES, *names.RESULTS, *names.FORMER_RESULTS, names.RESTART, names.IDLE))


def is_written(key: str) -> bool:
    """Return whether an annotation is a note or result that the webhook or the controller writes."""
    return key in _WRITTEN


class Annotations:
    """What a pod's annotations ask for, with what its policy and its workload stand for.

    Each annotation is read once, when it is first asked for. So the first error is that of the first question.

    Args:
        texts: All annotations of the pod.
        policies: What names of policies and workloads stand for.
    """

    def __init__(self, texts: Mapping[str, str], policies: Policies = DEFAULTS) -> None:
        self.texts, self.policies = texts, policies
        self._of_gang = Values(texts)

    @functools.cached_property
    def said(self) -> dict[str, str]:
        """Return the author's annotations by their own names, each of them known; those about a gang are read.

        Raises:
            WordError: An unknown key, a value that is too long, an alias that contradicts its annotation, or a bad
                value of one about a gang.
        """
        said: dict[str, str] = {}
        for key, value in self.texts.items():
            if not names.is_ours(key) or key in _WRITTEN:
                continue
            known = ALIASES.get(key, key)  # the name of its own if it is an alias
            if known not in annotation_words.BY_KEY:
                raise messages.unknown(key, _KNOWN)
            if len(value) > LONGEST_VALUE:
                raise WordError(f"{key}: {len(value)} characters; a value has at most {LONGEST_VALUE}")
            if _is_of_gang(known):
                self._of_gang.get(known)  # raises if the value is bad
            elif known != key and self.texts.get(known, value) != value:
                raise messages.contradicts(key, value, f"{known}: {shown(self.texts[known])}")
            said[known] = value
        return said

    @functools.cached_property
    def spelled_out(self) -> SpelledOut:
        """Return the annotations that say something of one pod, with what policies stand for.

        Raises:
            WordError: What ``said`` and ``SpelledOut`` refuse.
        """
        of_pod = {key: text for key, text in self.said.items() if not _is_of_gang(key)}
        return SpelledOut(of_pod, self.policies)

    @functools.cached_property
    def values(self) -> Values:
        """Return the values of a pod's annotations, spelled out, in the order in which they are read.

        Raises:
            WordError: What ``spelled_out`` refuses.
        """
        return Values(_in_order(self.spelled_out.texts()))

    @functools.cached_property
    def gang(self) -> Gang | None:
        """Return what a pod's annotations say of a gang; None if they say nothing, or only what is so anyway.

        Raises:
            WordError: A bad value of an annotation about a gang.
        """
        return gang_annotations.gang(self._of_gang)

    @property
    def aside(self) -> dict[str, str]:
        """Return the annotations that the choice of GPUs does not depend on: each of ``ASIDE``, as said or by default.

        Raises:
            WordError: What ``values`` refuses, or a bad value of one of them.
        """
        return {key: self.values.get(key) or allowed[0] for key, allowed in annotation_words.ASIDE.items()}

    @property
    def shared_claim(self) -> str | None:
        """Return the name of the claim that a pod shares by its annotation; None if it has its own.

        Raises:
            WordError: What ``values`` refuses, or a bad name.
        """
        name: str | None = self.values.get(names.SHARED_CLAIM)
        return name

    @property
    def idle_timeout_s(self) -> int | None:
        """Return after how many seconds without work an annotation releases the GPUs; None if none does.

        Raises:
            WordError: What ``values`` refuses, or a bad duration.
        """
        seconds: int | None = self.values.get(names.IDLE_TIMEOUT)
        return seconds

    @property
    def max_duration_s(self) -> int | None:
        """Return for how long a pod may run by its annotation or policy, seconds; None for any time.

        Raises:
            WordError: What ``values`` refuses, or a bad duration.
        """
        seconds: int | None = self.values.get(names.MAX_DURATION)
        return seconds

    def check(self) -> None:
        """Raise unless every annotation can be read, however many GPUs the pod has.

        Raises:
            WordError: An unknown key, a bad value or a contradiction among the annotations.
        """
        self._fields()

    def request(self, asked: Mapping[str, Asked], *, vendor: str = "") -> Request:
        """Return the request of the pod, from its annotations and its containers' limits.

        Args:
            asked: By container name, in pod order, what each container requests that uses GPUs or fractions.
            vendor: The vendor that the containers' limits name; empty if they name none.

        Raises:
            WordError: What ``check`` refuses, or a contradiction between the annotations and the limits.
        """
        # Fields of the request by name, as the annotations give them. The vendor is said by the annotation, else by the
        # limits, else by the driver that allocates the GPUs.
        fields = self._fields()
        vendor_word = fields.setdefault("vendor", vendor or current_ledger().vendor or NVIDIA.word)
        if vendor and vendor_word != vendor:
            raise messages.contradicts(
                names.VENDOR, vendor_word, f"the containers' limits, which ask for GPUs of {vendor}"
            )
        resource = VENDORS[vendor_word].resources[0]  # the vendor's extended resource, such as nvidia.com/gpu
        total = sum(map(container_requests.count, asked.values()))
        annotated_gpus = self.values.get(names.GPUS)
        if annotated_gpus is not None and annotated_gpus != total:
            raise WordError(
                f"{names.GPUS}: '{annotated_gpus}' contradicts the containers' limits, which ask for {total} "
                f"{resource}; write one of the two"
            )
        if not total:
            raise WordError(
                f"the pod has {names.PREFIX} annotations but asks for no GPU: give a container a limit "
                f"{resource}: <count>, or write the annotation {names.GPUS}: <count>"
            )
        request = container_requests.request(self.values, asked, fields)

        # Annotations about sets of GPUs (links, NUMA) make no sense for fractions.
        if not isinstance(request, Whole):
            self._refuse_set_annotations()
        vendor_words.check(fields, parts=not isinstance(request, Whole))
        return request

    def _fields(self) -> dict[str, Any]:
        """Return the fields of a Request that annotations give, without its containers."""
        fields = annotation_words.fields(self.values)
        vendor_words.check(fields, parts=container_requests.of_words(self.values) is not None)
        return fields

    def _refuse_set_annotations(self) -> None:
        """Raise if the pod or its policy says something of a set of whole GPUs; it asks for parts of GPUs.

        What its workload stands for is no contradiction: it suits such jobs only if they have whole GPUs.

        Raises:
            WordError: It does.
        """
        said = _in_order(self.spelled_out.texts(workload=False))
        key = next((key for key, text in said.items() if key in annotation_words.OF_SETS and text != "false"), None)
        if key is None:
            return
        other = next((key for key in annotation_words.OF_PARTS if key in self.values.texts), _LIMITS)
        key = key if key in self.said else names.POLICY
        raise WordError(
            f"{key}: {shown(self.said[key])} is about sets of whole GPUs and contradicts {other}; write one of the two"
        )


def _is_of_gang(key: str) -> bool:
    """Return whether an annotation says something of a gang: nothing of it is in a Request."""
    return annotation_words.BY_KEY[key].about is About.GANG


def _in_order(texts: Mapping[str, str]) -> dict[str, str]:
    """Return annotations in the order in which they are read."""
    return dict(sorted(texts.items(), key=lambda item: annotation_words.ORDER[item[0]]))
