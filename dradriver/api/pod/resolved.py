"""The resolved request: a versioned note on the pod, which the webhook makes from its annotations and limits.

A *note* is an annotation in which the driver keeps data for itself. The webhook reads the annotations of the author
once, at admission. The controller reads this note and never the annotations, so both always understand the same. The
webhook overwrites a note that an author sends. While no webhook answers, an admission policy of the API server refuses
changes of notes. The controller checks caps and partitions in any case. If a note is damaged, only that pod gets no
place; other pods are not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Amount, Mig, Request, Share, Weights, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.gangs import gang_annotations, gang_support
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.pod.annotations import Annotations
from dradriver.api.vocabulary import annotation_words, messages, values
from dradriver.api.vocabulary.container_requests import Asked, described, request_names
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.values import MOST_GPUS
from dradriver.topology.vendors import NVIDIA

VERSION: Final = 2
NEWEST: Final = max(word.since for word in annotation_words.EVERY)
"""Of notes that can be read; one with a word that releases which know version 2 at most would read past is of a later
one (``Word.since``)."""
MOST_KEPT: Final = 64  # variables
LONGEST_KEPT: Final = 128  # characters of one
LONGEST: Final = 16_384  # characters; a pod of 100 GPU containers needs half of that


class Resolved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resolved request of a pod.

    Attributes:
        version: The format's version.
        containers: Names of the containers that request GPUs or fractions, in pod order.
        request: The request for the allocator, for these containers in this order.
        nccl: The NCCL setting; unset if the author wrote none.
        product: The product that the limits name (``nvidia.com/gpu.<product>``); unset if they name none. ``request``
            also has it. The field exists because the webhook removes the limits, and may read the annotations again
            later.
        vendor: The vendor that the limits name, if it is not NVIDIA; else unset. ``request`` also has it.
        gang: The gang annotations; unset without any.
        idle_timeout_s: After how many idle seconds the driver releases the GPUs; unset without the annotation.
        placement: ``static`` if only the scheduler places the pod; else unset.
        spot: ``prefer`` or ``avoid`` if the pod prefers or avoids spot nodes; else unset.
        when_full: ``hand-over`` if the scheduler places the pod when the controller finds no place; else unset.
        keep_env: Environment variables that no CDI edit may replace, for a pod that only the scheduler places. Pods
            that share a claim template have the same variables.
        ladder: For a pod that only the scheduler places, the webhook's version of the list of alternatives
            (``claim_alternatives.VERSION``); unset in notes of older releases. The template's name is a hash of this
            note. So another version gives another template.
        shared: The name of the claim that the pod shares with all pods that name it; unset if the pod has its own
            claim. For a shared claim, ``request`` describes the shared set as one container's request, and each of
            ``containers`` uses the whole set.
    """

    version: int = VERSION
    containers: tuple[str, ...]
    request: Request
    nccl: str | msgspec.UnsetType = msgspec.UNSET
    product: str | msgspec.UnsetType = msgspec.UNSET
    vendor: str | msgspec.UnsetType = msgspec.UNSET
    gang: Gang | msgspec.UnsetType = msgspec.UNSET
    idle_timeout_s: int | msgspec.UnsetType = msgspec.UNSET
    placement: str | msgspec.UnsetType = msgspec.UNSET
    when_full: str | msgspec.UnsetType = msgspec.UNSET
    spot: str | msgspec.UnsetType = msgspec.UNSET
    keep_env: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    ladder: int | msgspec.UnsetType = msgspec.UNSET
    shared: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def asked(self) -> dict[str, Asked]:
        """Return the GPUs or fractions that each container requests, by container name in pod order."""
        asked = _amounts_by_container(self.request)
        if self.shared is not msgspec.UNSET:
            return dict.fromkeys(self.containers, asked[0])
        return dict(zip(self.containers, asked, strict=True))

    @property
    def requests(self) -> dict[str, tuple[str, ...]]:
        """Return the names of each container's requests in the claim, by container name in pod order."""
        if self.shared is not msgspec.UNSET:
            return dict.fromkeys(self.containers, (names.SET_REQUEST,))
        return request_names(self.asked)


class Rare(msgspec.Struct, frozen=True, gc=False):
    """The fields that only a few pods' notes have; unset if a note does not have them.

    The values are JSON that is not decoded yet, because most callers do not need them.

    Attributes:
        gang: The gang annotations.
        idle_timeout_s: After how many idle seconds the driver releases the GPUs.
    """

    gang: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    idle_timeout_s: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Version(msgspec.Struct, frozen=True):
    version: int = 0


_ENCODER: Final = msgspec.json.Encoder()
_VERSION: Final = msgspec.json.Decoder(_Version)
_DECODER: Final = msgspec.json.Decoder(Resolved)
_RARE: Final = msgspec.json.Decoder(Rare)
_NO_RARE: Final = Rare()


def resolve(annotations: Annotations, asked: Mapping[str, Asked], *, product: str = "", vendor: str = "") -> Resolved:
    """Return the resolved request of a pod: its annotations and its containers' limits together.

    The annotations ``policy`` and ``workload`` are replaced by the annotations that they stand for. The weights of the
    policies file are not part of the result: the controller adds the weights in force when it chooses GPUs.

    Args:
        annotations: The pod's annotations.
        asked: What each container's limits request, by container name.
        product: The GPU product that the limits name; empty if they name none.
        vendor: The vendor that the limits name; empty if they name none.

    Raises:
        WordError: ``Annotations`` refuses the annotations, or they contradict the limits.
    """
    # ``aside``: annotations that the choice of GPUs does not depend on. ``shared``: the claim's name if pods share it.
    other_annotations, shared = annotations.aside, annotations.shared_claim
    request = annotations.request(asked if shared is None else _ask_of_shared_set(shared, asked), vendor=vendor)
    if product and request.product not in ("", product):
        raise messages.contradicts(
            names.PRODUCT, request.product, f"the containers' limits, which name the product {product}"
        )
    gang = annotations.gang
    # The oldest version of the note that has these annotations: controllers of older releases can then read it.
    version = max(annotation_words.version(request, VERSION), annotation_words.version_aside(other_annotations))
    resolved = Resolved(
        version=version if gang is None else gang_annotations.version(gang, version),
        containers=tuple(asked),
        request=msgspec.structs.replace(request, product=product) if product else request,
        nccl=_unset_if_default(values.NCCL_AUTO, other_annotations[names.NCCL]),
        product=product or msgspec.UNSET,
        vendor=_unset_if_default(NVIDIA.word, vendor or NVIDIA.word),
        gang=gang or msgspec.UNSET,
        idle_timeout_s=annotations.idle_timeout_s or msgspec.UNSET,
        placement=_unset_if_default(values.PLACED, other_annotations[names.PLACEMENT]),
        when_full=_unset_if_default(values.WAIT, other_annotations[names.WHEN_FULL]),
        spot=_unset_if_default(values.ANY_NODE, other_annotations[names.SPOT]),
        shared=shared or msgspec.UNSET,
    )
    # What a gang, or pods that share a claim, cannot have in addition.
    _check_shared(resolved)
    _check_gang(resolved)
    return resolved


def _ask_of_shared_set(shared: str, asked: Mapping[str, Asked]) -> dict[str, Asked]:
    """Return the first container's request, which stands for the whole shared set of GPUs.

    Each container uses all GPUs of the set, so all containers must request the same.

    Raises:
        WordError: The containers request different things.
    """
    first = dict(list(asked.items())[:1])
    if any(ask not in first.values() for ask in asked.values()):
        each = ", ".join(f"container {name[:63]!r}: {described(ask)}" for name, ask in list(asked.items())[:8])
        raise WordError(
            f"{names.SHARED_CLAIM}: {shown(shared)}: each container with GPUs uses all GPUs of a shared claim, but "
            f"the limits differ ({each}). Write the same limit in each container."
        )
    return first


def _check_shared(resolved: Resolved) -> None:
    """Raise if a pod with a shared claim has an annotation that a shared claim does not support.

    Raises:
        WordError: The pod requests fractions, a gang, or a placement by the scheduler.
    """
    if resolved.shared is msgspec.UNSET:
        return
    why = ""
    if not isinstance(resolved.request, Whole):
        why = (
            f"only whole GPUs can be shared by pods. Write the limit {names.GPU_RESOURCE}, and remove the annotations "
            f"about fractions."
        )
    elif resolved.placement is not msgspec.UNSET:
        why = (
            f"with {names.PLACEMENT}: {resolved.placement} each pod gets a claim of its own. Remove {names.PLACEMENT}."
        )
    elif resolved.when_full is not msgspec.UNSET:
        why = (
            f"the claim is placed once for all its pods, so {names.WHEN_FULL}: {resolved.when_full} is not possible. "
            f"Remove {names.WHEN_FULL}."
        )
    elif resolved.gang is not msgspec.UNSET:
        why = gang_support.SHARED.why
    if why:
        raise WordError(f"{names.SHARED_CLAIM}: {shown(resolved.shared)}: {why}")


def _check_gang(resolved: Resolved) -> None:
    """Raise if a new pod of a gang requests a feature that gangs do not support.

    Only new pods are checked. A pod that an older release admitted keeps its request.

    Raises:
        WordError: The pod requests a fraction, or a placement by the scheduler.
    """
    if resolved.gang is msgspec.UNSET:
        return
    row, told = None, ""
    if resolved.placement is not msgspec.UNSET:
        row, told = gang_support.STATIC, f"{names.PLACEMENT}: {resolved.placement}"
    elif resolved.when_full is not msgspec.UNSET:
        row, told = gang_support.HAND_OVER, f"{names.WHEN_FULL}: {resolved.when_full}"
    elif isinstance(resolved.request, Share):
        row, told = gang_support.SHARE, "a share of a GPU"
    elif isinstance(resolved.request, Mig):
        row, told = gang_support.MIG, "a MIG slice"
    if row is not None:
        raise gang_support.refusal(row, told, gang_annotations.said(resolved.gang))


def _unset_if_default(default: str, said: str) -> str | msgspec.UnsetType:
    return msgspec.UNSET if said == default else said


def write(resolved: Resolved) -> str:
    """Return the text of the note with a pod's resolved request."""
    plain = msgspec.to_builtins(resolved) | {"request": annotation_words.as_written(resolved.request)}
    return _ENCODER.encode(plain).decode()


def read(annotations: Mapping[str, str]) -> Resolved:
    """Return a pod's resolved request, as the webhook noted it.

    Raises:
        WordError: There is no note, or it was changed and cannot be read.
    """
    text = annotations.get(names.REQUEST)
    if text is None:
        raise WordError(
            f"The annotation {names.REQUEST}, which the webhook writes, is missing. Delete the pod and create it again."
        )
    try:
        if len(text) > LONGEST:
            raise WordError(f"it has {len(text)} characters, more than {LONGEST}")
        resolved = _decode(text)
        _check(resolved)
    except (WordError, ValueError, RecursionError) as error:
        told = str(error) if isinstance(error, WordError) else shown(str(error))
        raise WordError(
            f"The annotation {names.REQUEST} was changed: {told.removesuffix('.')}. Delete the pod and create it again."
        ) from None
    return resolved


def rare(annotations: Mapping[str, str]) -> Rare:
    """Return the rare fields of the note with the resolved request; all unset without a readable note.

    This function takes a tenth of the time of ``read``.
    """
    text = annotations.get(names.REQUEST)
    if text is None or len(text) > LONGEST:
        return _NO_RARE
    try:
        return _RARE.decode(text)
    except (ValueError, RecursionError):
        return _NO_RARE


def _decode(text: str) -> Resolved:
    version = _VERSION.decode(text).version
    if not VERSION <= version <= NEWEST:
        raise WordError(f"its version is {version}, and this release reads {VERSION} to {NEWEST}")
    return _DECODER.decode(text)


def _check(resolved: Resolved) -> None:
    """Raise an error for a note that the webhook never writes.

    Users can change the note, and later code uses its values unchecked, in the allocator and in CEL expressions.

    Raises:
        WordError: The message names the field that has a wrong value.
    """
    # Optional fields are UNSET if they have their default: the default itself is never written.
    request = resolved.request
    amounts_by_container = _amounts_by_container(request)

    # Containers that share one claim count as one: the request is that of the whole set.
    expected_containers = (
        1 if resolved.shared is not msgspec.UNSET and resolved.containers else len(resolved.containers)
    )
    if (
        not amounts_by_container
        or len(set(resolved.containers)) != len(resolved.containers)
        or len(amounts_by_container) != expected_containers
    ):
        raise WordError("the containers in it are not the containers of the pod that request GPUs")
    if resolved.shared is not msgspec.UNSET and values.set_name(resolved.shared) is None:
        raise WordError("its name of a shared claim is not valid")
    _check_shared(resolved)
    # Each field of the request must have a value that its annotation can give.
    if (word := annotation_words.unfit(request)) is not None:
        raise WordError(f"its value of {word.name} is not valid")
    if resolved.product not in (msgspec.UNSET, request.product) or resolved.product == "":
        raise WordError("its product differs from the product that the limits name")
    if resolved.vendor not in (msgspec.UNSET, request.vendor) or resolved.vendor == NVIDIA.word:
        raise WordError("its vendor differs from the vendor that the limits name")
    if request.vendor != NVIDIA.word and not isinstance(request, Whole):
        raise WordError("it requests fractions of GPUs that cannot be divided")
    if resolved.gang is not msgspec.UNSET:
        gang_annotations.check(resolved.gang)
    if resolved.idle_timeout_s is not msgspec.UNSET and resolved.idle_timeout_s < 1:
        raise WordError("its duration is not valid")
    if resolved.nccl is not msgspec.UNSET and values.nccl(resolved.nccl) is None:
        raise WordError("its NCCL setting is not valid")
    if resolved.placement not in (msgspec.UNSET, values.STATIC) or resolved.when_full not in (
        msgspec.UNSET,
        values.HAND_OVER,
    ):
        raise WordError("its placement is not valid")
    if resolved.spot not in (msgspec.UNSET, values.PREFER_SPOT, values.AVOID_SPOT):
        raise WordError("its setting for spot nodes is not valid")

    # Fields of pods that the scheduler alone places: variables that no CDI edit replaces, and the version of the list
    # of alternatives (``ladder``).
    kept_variables = () if resolved.keep_env is msgspec.UNSET else resolved.keep_env
    if len(kept_variables) > MOST_KEPT or any(len(name) > LONGEST_KEPT for name in kept_variables):
        raise WordError("it has too many environment variables to keep")
    if resolved.ladder is not msgspec.UNSET and resolved.ladder < 1:
        raise WordError("its list of alternatives is not valid")
    match request:
        case Whole():
            _check_whole(request)
        case Share():
            if not all(map(_is_valid_amount, request.amounts)) or len(request.amounts) > MOST_GPUS:
                raise WordError(f"its number of shares is not from 1 to {MOST_GPUS}, or one of the shares is not valid")
        case Mig():
            all_profiles = [profile for profiles in request.profiles for profile in profiles]
            if not all(request.profiles) or len(all_profiles) > MOST_GPUS or any(map(_is_no_profile, all_profiles)):
                raise WordError(f"its number of MIG slices is not from 1 to {MOST_GPUS}, or one of them is not valid")


def _check_whole(request: Whole) -> None:
    if min(request.containers) < 1 or request.gpus > MOST_GPUS:
        raise WordError(f"its number of GPUs is not from 1 to {MOST_GPUS}")
    if request.include or request.exclude or request.weights != Weights():
        raise WordError("it has a value that no annotation can have")


def _amounts_by_container(request: Request) -> tuple[int, ...] | tuple[Amount, ...] | tuple[tuple[str, ...], ...]:
    """Return what each container requests: a number of GPUs, a share, or a list of MIG profiles.

    The containers are in pod order.
    """
    match request:
        case Whole():
            return request.containers
        case Share():
            return request.amounts
        case Mig():
            return request.profiles


def _is_valid_amount(amount: Amount) -> bool:
    some = amount.cores > 0 or amount.memory_mib > 0
    return some and 0 <= amount.cores <= 100 and 0 <= amount.memory_mib <= values.MOST_MEMORY_MIB


def _is_no_profile(name: str) -> bool:
    return values.mig_profile(name) != name
