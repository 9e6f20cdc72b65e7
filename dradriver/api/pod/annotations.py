"""Reads a pod's annotations into a Request. The webhook calls it at admission.

The annotations ``policy`` and ``workload`` of a pod are names, which stand for further annotations. The policies file
defines these names.
"""

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
_LIMITS: Final = "the containers' limits, which request fractions of a GPU"
_WRITTEN: Final = frozenset((*names.NOTES, *names.RESULTS, *names.FORMER_RESULTS, names.RESTART, names.IDLE))


def is_written(key: str) -> bool:
    """Return whether the webhook or the controller writes an annotation of this name, and not the author."""
    return key in _WRITTEN


class Annotations:
    """The annotations that apply to a pod: its own, and those of the policy and workload that it names.

    The policies file defines these names. Each annotation is read once, when it is first used. So the first error is
    about the annotation that is used first.

    Args:
        texts: All annotations of the pod.
        policies: The policies in force, which define the names of policies and workloads.
    """

    def __init__(self, texts: Mapping[str, str], policies: Policies = DEFAULTS) -> None:
        self.texts, self.policies = texts, policies
        self._of_gang = Values(texts)

    @functools.cached_property
    def said(self) -> dict[str, str]:
        """Return the author's annotations; the main name replaces an alias.

        Annotations about a gang are also checked here.

        Raises:
            WordError: An unknown key, a value that is too long, an alias that contradicts its annotation, or a bad
                value of an annotation about a gang.
        """
        said: dict[str, str] = {}
        for key, value in self.texts.items():
            if not names.is_ours(key) or key in _WRITTEN:
                continue
            known = ALIASES.get(key, key)  # the name of its own if it is an alias
            if known not in annotation_words.BY_KEY:
                raise messages.unknown(key, _KNOWN)
            if len(value) > LONGEST_VALUE:
                raise WordError(f"{key}: the value has {len(value)} characters. At most {LONGEST_VALUE} are allowed.")
            if _is_of_gang(known):
                self._of_gang.get(known)  # raises if the value is bad
            elif known != key and self.texts.get(known, value) != value:
                raise messages.contradicts(key, value, f"{known}: {shown(self.texts[known])}")
            said[known] = value
        return said

    @functools.cached_property
    def spelled_out(self) -> SpelledOut:
        """Return the pod's annotations, except those about a gang, with ``workload`` and ``policy`` replaced.

        These two are replaced by the annotations that they stand for in the policies file.

        Raises:
            WordError: ``said`` or ``SpelledOut`` refuses the annotations.
        """
        of_pod = {key: text for key, text in self.said.items() if not _is_of_gang(key)}
        return SpelledOut(of_pod, self.policies)

    @functools.cached_property
    def values(self) -> Values:
        """Return the values of the annotations in ``spelled_out``, in the order in which they are read.

        Raises:
            WordError: ``spelled_out`` refuses the annotations.
        """
        return Values(_in_order(self.spelled_out.texts()))

    @functools.cached_property
    def gang(self) -> Gang | None:
        """Return the pod's gang annotations; None if all are missing or have their default.

        Raises:
            WordError: An annotation about a gang has a bad value.
        """
        return gang_annotations.gang(self._of_gang)

    @property
    def aside(self) -> dict[str, str]:
        """Return the texts of the annotations that do not affect the choice of GPUs.

        An example is the NCCL setting. The table ``annotation_words.ASIDE`` lists these annotations. If the pod lacks
        one of them, the result has its default.

        Raises:
            WordError: ``values`` refuses the annotations, or one of ``ASIDE`` has a bad value.
        """
        return {key: self.values.get(key) or allowed[0] for key, allowed in annotation_words.ASIDE.items()}

    @property
    def shared_claim(self) -> str | None:
        """Return the name of the claim that the pod shares with other pods; None without the annotation.

        Raises:
            WordError: ``values`` refuses the annotations, or the name is bad.
        """
        name: str | None = self.values.get(names.SHARED_CLAIM)
        return name

    @property
    def idle_timeout_s(self) -> int | None:
        """Return after how many idle seconds the driver releases the GPUs; None for never.

        Raises:
            WordError: ``values`` refuses the annotations, or the duration is bad.
        """
        seconds: int | None = self.values.get(names.IDLE_TIMEOUT)
        return seconds

    @property
    def max_duration_s(self) -> int | None:
        """Return how long a pod may run by its annotation or policy, seconds; None for no limit.

        Raises:
            WordError: ``values`` refuses the annotations, or the duration is bad.
        """
        seconds: int | None = self.values.get(names.MAX_DURATION)
        return seconds

    def check(self) -> None:
        """Raise unless every annotation can be read. The number of GPUs is not checked.

        Raises:
            WordError: An unknown key, a bad value or a contradiction among the annotations.
        """
        self._fields()

    def request(self, asked: Mapping[str, Asked], *, vendor: str = "") -> Request:
        """Return the request of the pod, from its annotations and its containers' limits.

        Args:
            asked: What each container requests, by its name and in pod order. Containers without GPUs or fractions are
                left out.
            vendor: The vendor that the containers' limits name; empty if they name none.

        Raises:
            WordError: ``check`` refuses the annotations, or they contradict the limits.
        """
        # Fields of the request by name, as the annotations give them. The vendor is said by the annotation, else by the
        # limits, else by the driver that allocates the GPUs.
        fields = self._fields()
        vendor_word = fields.setdefault("vendor", vendor or current_ledger().vendor or NVIDIA.word)
        if vendor and vendor_word != vendor:
            raise messages.contradicts(
                names.VENDOR, vendor_word, f"the containers' limits, which request GPUs of {vendor}"
            )
        resource = VENDORS[vendor_word].resources[0]  # the vendor's extended resource, such as nvidia.com/gpu
        total = sum(map(container_requests.count, asked.values()))
        annotated_gpus = self.values.get(names.GPUS)
        if annotated_gpus is not None and annotated_gpus != total:
            raise WordError(
                f"{names.GPUS}: '{annotated_gpus}' contradicts the containers' limits, which request {total} "
                f"{resource}. Write only one of the two."
            )
        if not total:
            raise WordError(
                f"The pod has {names.PREFIX} annotations but requests no GPU. Give a container the limit {resource}: "
                f"<count>, or write the annotation {names.GPUS}: <count>."
            )
        request = container_requests.request(self.values, asked, fields)

        # Annotations about sets of GPUs (links, NUMA) make no sense for fractions.
        if not isinstance(request, Whole):
            self._refuse_set_annotations()
        vendor_words.check(fields, parts=not isinstance(request, Whole))
        return request

    def _fields(self) -> dict[str, Any]:
        """Return the fields of the pod's Request (for the allocator) that its annotations set."""
        fields = annotation_words.fields(self.values)
        vendor_words.check(fields, parts=container_requests.of_words(self.values) is not None)
        return fields

    def _refuse_set_annotations(self) -> None:
        """Raise if a pod that requests fractions has annotations about sets of whole GPUs.

        The annotations of the pod and of its policy count. The annotations that its ``workload`` stands for do not
        count: they can be settings for whole GPUs, which simply do not apply here.

        Raises:
            WordError: The pod or its policy has such an annotation.
        """
        said = _in_order(self.spelled_out.texts(workload=False))
        key = next((key for key, text in said.items() if key in annotation_words.OF_SETS and text != "false"), None)
        if key is None:
            return
        other = next((key for key in annotation_words.OF_PARTS if key in self.values.texts), _LIMITS)
        key = key if key in self.said else names.POLICY
        text = self.said[key]
        raise WordError(
            f"{key}: {shown(text)} is about sets of whole GPUs and contradicts {other}. Write only one of the two."
        )


def _is_of_gang(key: str) -> bool:
    """Return whether an annotation is about a gang. A Request has no fields for such annotations."""
    return annotation_words.BY_KEY[key].about is About.GANG


def _in_order(texts: Mapping[str, str]) -> dict[str, str]:
    """Return annotations sorted in the order in which the driver reads them.

    A fixed order gives the same first error each time.
    """
    return dict(sorted(texts.items(), key=lambda item: annotation_words.ORDER[item[0]]))
