"""Every annotation that a pod's author can write, declared once: its name, what it is about, and how it is read.

A *note* is an annotation that the webhook writes on a pod. It has the pod's resolved request, which the controller
reads. These declarations tell other code:

- which annotations are known, and which of them a policy of the policies file may have;
- which annotations contradict fractions;
- which fields of a note are checked again, and which version of its format a note has.

To add an annotation that is a field of a request, add one ``Word`` here, and use the field in the allocator.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from dradriver.allocator.request import NEAR_NIC, Constraint, Request, Strategy, Whole
from dradriver.api.base import names
from dradriver.api.vocabulary import messages, values
from dradriver.topology.vendors import VENDORS


class About(enum.Enum):
    """What an annotation is about: a set of GPUs, a fraction, the pod, or its gang."""

    SET = enum.auto()  # a set of whole GPUs: contradicts a part of one
    GPU = enum.auto()  # each GPU, whole or a part of one
    PART = enum.auto()  # parts: together such words say one thing
    POD = enum.auto()
    GANG = enum.auto()  # the pods of one job


Reader = Callable[[str, str], Any]
"""Reads the value of an annotation, from its name and its text; raises ``WordError`` for an invalid text."""


def _any_size(_: Any) -> bool:
    return True


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of one annotation.

    Attributes:
        key: The annotation's name.
        about: What the annotation is about, such as the pod or its gang.
        read: Reads its text as a value.
        field: The field of the ``Request`` that has its value, or of the ``Gang`` if it is about gangs; empty if the
            value is stored elsewhere. Several annotations can have the same field if their values are tuples, which are
            added together.
        holds: Returns whether ``read`` can return this value. This function checks the values in a pod's note (the
            resolved request), because users can change notes. The allocator and the CEL expressions do not check them
            again.
        choices: All allowed texts; empty if any text is allowed that ``read`` accepts. If the attribute ``about`` is
            ``POD``, the first text is the default of the annotation.
        of_policies: Whether a policy of the policies file may contain this annotation.
        since: The first version of the note's format that has the field. Older controllers would ignore or refuse the
            field.
    """

    key: str
    about: About
    read: Reader
    field: str = ""
    holds: Callable[[Any], bool] = _any_size
    choices: tuple[str, ...] = ()
    of_policies: bool = True
    since: int = 2

    @property
    def name(self) -> str:
        """Return the annotation's name without ``gpu.topology/``, as the policies file writes it."""
        return self.key.removeprefix(names.PREFIX)


def _form(read: Callable[[str], object | None], what: str) -> Reader:
    def reader(key: str, text: str) -> Any:
        value = read(text)
        if value is None:
            raise messages.is_not(key, text, what)
        return value

    return reader


def _choice(read: Callable[[str], object | None], allowed: Collection[str]) -> Reader:
    def reader(key: str, text: str) -> Any:
        value = read(text)
        if value is None:
            raise messages.not_one_of(key, text, allowed)
        return value

    return reader


def _one_of(allowed: Collection[str]) -> Reader:
    return _choice(lambda text: text if text in allowed else None, allowed)


def _as_it_is(_: str, text: str) -> str:
    return text


def _ladder(key: str, text: str) -> tuple[Constraint, ...]:
    rungs = [word.strip() for word in text.split(",")]
    for rung in rungs:
        if rung not in values.CONSTRAINTS:
            raise messages.not_one_of(key, rung, values.CONSTRAINTS)
    return tuple(values.CONSTRAINTS[rung] for rung in rungs)


def _require_nvlink(key: str, text: str) -> tuple[Constraint, ...]:
    return (Constraint.NVLINK,) if _choice(values.flag, values.FLAGS)(key, text) else ()


def _is_rate(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _each_once(value: tuple[Constraint, ...]) -> bool:
    return len(value) <= len(Constraint)


def _is_many(value: int) -> bool:
    return 1 <= value <= values.MOST_PODS


_FLAGS: Final = tuple(values.FLAGS)

EVERY: Final = (
    # What it may say is for ``policies.meaning``, which puts other words in its place.
    Word(key=names.POLICY, about=About.SET, read=_as_it_is, of_policies=False),
    Word(key=names.REQUIRED, about=About.SET, read=_ladder, field="required", holds=_each_once),
    Word(key=names.PREFERRED, about=About.SET, read=_ladder, field="preferred", holds=_each_once),
    Word(
        key=names.REQUIRE_NVLINK, about=About.SET, read=_require_nvlink, field="required", holds=_each_once,
        choices=_FLAGS,
    ),
    Word(key=names.GPUS, about=About.POD, read=_form(values.gpu_count, messages.GPUS), of_policies=False),
    Word(
        key=names.STRATEGY, about=About.GPU, read=_choice(values.strategy, values.STRATEGIES), field="strategy",
        choices=tuple(values.STRATEGIES),
    ),
    Word(
        key=names.MIN_BANDWIDTH, about=About.SET, read=_form(values.rate_gbps, messages.RATE),
        field="min_bandwidth_gbps", holds=_is_rate,
    ),
    Word(
        key=names.MIN_BUSBW, about=About.SET, read=_form(values.rate_gbps, messages.RATE),
        field="min_busbw_gbps", holds=_is_rate,
    ),
    Word(
        key=names.PRODUCT, about=About.GPU, read=_form(values.product, messages.PRODUCT),
        field="product", holds=lambda value: not value or values.product(value) is not None,
    ),
    Word(
        key=names.ARCHITECTURE, about=About.GPU, read=_form(values.architecture, messages.ARCHITECTURE),
        field="architecture", holds=lambda value: not value or values.architecture(value) is not None,
    ),
    Word(
        key=names.MIN_MEMORY, about=About.GPU, read=_form(values.memory_mib, messages.MEMORY),
        field="min_memory_mib", holds=lambda value: 0 <= value <= values.MOST_MEMORY_MIB,
    ),
    Word(
        key=names.MIN_DRIVER, about=About.GPU, read=_form(values.version, messages.DRIVER),
        field="min_driver", holds=lambda value: not value or values.version(value) == value, since=3,
    ),
    Word(
        key=names.MIN_CUDA, about=About.GPU, read=_form(values.version, messages.CUDA),
        field="min_cuda", holds=lambda value: not value or values.version(value) == value, since=3,
    ),
    Word(
        key=names.VENDOR, about=About.GPU, read=_one_of(VENDORS), field="vendor", choices=tuple(VENDORS),
        holds=lambda value: value in VENDORS, since=6,
    ),
    Word(
        key=names.MAX_CROSS_NVSWITCH, about=About.SET, read=_form(values.few, messages.FEW),
        field="max_cross_nvswitch_gpus", holds=lambda value: value is None or 0 <= value <= 99,
    ),
    Word(
        key=names.PREFER_SAME_NUMA, about=About.SET, read=_choice(values.flag, values.FLAGS),
        field="prefer_same_numa", choices=_FLAGS,
    ),
    Word(
        key=names.NEAR_NIC, about=About.SET, read=_one_of(NEAR_NIC), field="near_nic",
        holds=lambda value: value in ("", *NEAR_NIC), choices=NEAR_NIC, since=6,
    ),
    Word(key=names.SHARE, about=About.PART, read=_form(values.share, messages.SHARE)),
    Word(key=names.SHARE_MEMORY, about=About.PART, read=_form(values.memory_mib, messages.MEMORY)),
    Word(key=names.SHARE_CORES, about=About.PART, read=_form(values.percent, messages.CORES)),
    Word(key=names.MIG_PROFILE, about=About.PART, read=_form(values.mig_profile, messages.MIG_PROFILE)),
    Word(key=names.NCCL, about=About.POD, read=_one_of(values.NCCL), choices=values.NCCL),
    Word(key=names.WORKLOAD, about=About.POD, read=_as_it_is, of_policies=False),
    Word(key=names.CLAIM, about=About.POD, read=_as_it_is, of_policies=False),
    Word(key=names.PLACEMENT, about=About.POD, read=_one_of(values.PLACEMENTS), choices=values.PLACEMENTS),
    Word(key=names.WHEN_FULL, about=About.POD, read=_one_of(values.WHEN_FULL), choices=values.WHEN_FULL),
    Word(key=names.SPOT, about=About.POD, read=_one_of(values.SPOT), choices=values.SPOT, since=5),
    Word(
        key=names.SHARED_CLAIM, about=About.POD, read=_form(values.set_name, messages.SET_NAME), of_policies=False
    ),
    # What ends a pod stands in its spec: the webhook writes it, and nobody reads the word again.
    Word(key=names.MAX_DURATION, about=About.POD, read=_form(values.duration_s, messages.DURATION)),
    Word(
        key=names.GANG, about=About.GANG, read=_form(values.label, messages.GANG), field="name",
        holds=lambda value: values.label(value) is not None,
    ),
    Word(
        key=names.GANG_SIZE, about=About.GANG, read=_form(values.pods, messages.PODS), field="pods",
        holds=values.are_pods,
    ),
    Word(
        key=names.MULTI_NODE_POLICY, about=About.GANG,
        read=_form(values.strategy, f"a strategy. Write one of: {', '.join(Strategy)}."), field="strategy",
    ),
    Word(
        key=names.MAX_NODES, about=About.GANG, read=_form(values.many, messages.MANY), field="max_nodes",
        holds=_is_many,
    ),
    Word(
        key=names.MIN_GPUS_PER_NODE, about=About.GANG, read=_form(values.gpu_count, messages.GPUS),
        field="min_gpus_per_node", holds=lambda value: 1 <= value <= values.MOST_GPUS,
    ),
    Word(
        key=names.MIN_NETWORK_BANDWIDTH, about=About.GANG, read=_form(values.rate_gbps, messages.RATE),
        field="min_network_gbps", holds=lambda value: _is_rate(value) and value > 0,
    ),
    Word(
        key=names.NEAR, about=About.GANG, read=_form(values.near, messages.NEAR), field="near",
        holds=lambda value: values.label(value.level) is not None, since=4,
    ),
    Word(
        key=names.ON_MEMBER_LOSS, about=About.GANG, read=_one_of(values.ON_MEMBER_LOSS), field="on_member_loss",
        holds=lambda value: value in values.ON_MEMBER_LOSS, choices=values.ON_MEMBER_LOSS, since=4,
    ),
    Word(key=names.IDLE_TIMEOUT, about=About.POD, read=_form(values.duration_s, messages.DURATION)),
)  # fmt: skip
"""All of them; those that do something in the order in which they are read."""

BY_KEY: Final = {word.key: word for word in EVERY}
KEYS: Final = tuple(BY_KEY)
ORDER: Final = {key: number for number, key in enumerate(KEYS)}
OF_SETS: Final = frozenset(word.key for word in EVERY if word.about is About.SET)
OF_PARTS: Final = tuple(word.key for word in EVERY if word.about is About.PART)
OF_REQUESTS: Final = tuple(word for word in EVERY if word.field and word.about is not About.GANG)
"""Those that are fields of a request."""
_UNSAID: Final = Whole(containers=())
ASIDE: Final = {word.key: word.choices for word in EVERY if word.about is About.POD and word.choices}
"""Words that the choice of GPUs does not depend on, and what they may say; the first is the default."""


class Values:
    """The values of annotations. Each text is read once, when its value is first used.

    Args:
        texts: The texts, by annotation.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._read: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """Return the value of an annotation that this module declares; None if the pod lacks it.

        Args:
            key: The annotation's name.

        Raises:
            WordError: The text is not a valid value.
        """
        if key not in self._read:
            self._read[key] = BY_KEY[key].read(key, self.texts[key]) if key in self.texts else None
        return self._read[key]


def fields(values: Values) -> dict[str, Any]:
    """Return the fields of a request that annotations give.

    All annotations are read in their order, so that always the same error is found first.

    Raises:
        WordError: A text is not a valid value.
    """
    given: dict[str, Any] = {}
    for key in values.texts:
        word, value = BY_KEY[key], values.get(key)
        if isinstance(value, tuple):
            value = tuple(dict.fromkeys((*given.get(word.field, ()), *value)))
        if word in OF_REQUESTS and value != ():
            given[word.field] = value
    return given


def version(request: Request, first: int) -> int:
    """Return the lowest version of the webhook's note that has all fields of this request.

    The note is the resolved request on the pod.

    Args:
        request: The request.
        first: The version that a note needs at least.
    """
    return max((first, *(word.since for word in OF_REQUESTS if _says(request, word))))


def version_aside(told: Mapping[str, str]) -> int:
    """Return the lowest version of the webhook's note that has fields for these annotations.

    The note is the resolved request on the pod. An annotation with its default needs no later version.

    Args:
        told: Texts of annotations that do not affect the choice of GPUs (the table ``ASIDE``), by name.
    """
    return max((BY_KEY[key].since for key, text in told.items() if text != ASIDE[key][0]), default=0)


def as_written(request: Request) -> dict[str, Any]:
    """Return a request as the webhook's note and shared claims store it, without default values.

    A short note is easier to read. Also, an older controller refuses notes with a field that it does not know, and can
    still read all other notes. A reader uses the default for a field that is left out, so a field's default must never
    change.
    """
    plain: dict[str, Any] = msgspec.to_builtins(request)
    defaults = _defaults(type(request))
    return {field: value for field, value in plain.items() if field not in defaults or value != defaults[field]}


@functools.cache
def _defaults(kind: type[Request]) -> dict[str, Any]:
    """Return the default values of a request's fields, as JSON."""
    return {
        field.encode_name: msgspec.to_builtins(field.default)
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT
    }


def _says(request: Request, word: Word) -> bool:
    """Return whether the request's field for an annotation differs from the field's default.

    If it does, the pod's author or a policy set the annotation (``word``).
    """
    default = getattr(_UNSAID, word.field)
    return bool(getattr(request, word.field, default) != default)


def unfit(request: Request) -> Word | None:
    """Return the first annotation with an impossible value in a request from the webhook's note.

    None if all values are valid. Users can change notes, so values are checked again.
    """
    some = ((word, getattr(request, word.field, None)) for word in OF_REQUESTS)
    return next((word for word, value in some if value is not None and not word.holds(value)), None)
