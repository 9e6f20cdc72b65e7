"""The resolved request: what the webhook made of a pod's words and limits, as a versioned note on the pod.

Words are read once, at admission. The controller reads this note and never a word, so that both always mean the same.
The webhook overwrites a note that an author sends, and the API server refuses to change one while no webhook answers.
The controller checks caps and partitions all the same. A damaged note costs that pod its place, nobody else anything.
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
    """What a pod asks for.

    Attributes:
        version: The format's version.
        containers: Names of the containers that want any GPU or part of one, in pod order.
        request: What the allocator is asked, for these containers in this order.
        nccl: What NCCL is told; unset where the author does not say.
        product: The product that limits name (``nvidia.com/gpu.<product>``), which the request has too; unset where
            they name none. The limits are gone, and words that are read again later do not say it.
        vendor: The vendor that the limits name, if it is not NVIDIA; else unset. The request has it, too.
        gang: What was said of a gang; unset where nothing was.
        idle_timeout_s: After how many seconds without work the GPUs are given back; unset where nothing was said.
        placement: ``static`` where the scheduler alone places the pod; else unset.
        spot: ``prefer`` or ``avoid`` where nodes that may be taken away at any time are better or worse; else unset.
        when_full: ``hand-over`` where the scheduler gets it once there is no place; else unset.
        keep_env: Variables that no edit may replace, of a pod that the scheduler alone places: pods that share the
            template of their claims have the same.
        ladder: Which ``ladder.VERSION`` the webhook that admitted such a pod knew; unset before there were any. It is
            here so that the template's name, which is this note's hash, is another where the ladder is.
        shared: The name of the claim that the pod shares with all that say the same; unset where it has one of its own.
            The request is what the set must be, as of one container, and each of ``containers`` uses all of it.
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
        """Return what each container asks for, by name in pod order: what the resolved request was made from."""
        asked = _amounts_by_container(self.request)
        if self.shared is not msgspec.UNSET:
            return dict.fromkeys(self.containers, asked[0])
        return dict(zip(self.containers, asked, strict=True))

    @property
    def requests(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the claim's requests of each container in a resolved request, by name in pod order."""
        if self.shared is not msgspec.UNSET:
            return dict.fromkeys(self.containers, (names.SET_REQUEST,))
        return request_names(self.asked)


class Rare(msgspec.Struct, frozen=True, gc=False):
    """The fields that few notes have, as JSON; unset where a note has none.

    Attributes:
        gang: What was said of a gang.
        idle_timeout_s: After how many seconds without work the GPUs are given back.
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

    Names of policies and workloads are spelled out in it. Weights are not: they are the administrator's, and the
    controller adds those in force when it chooses.

    Args:
        annotations: The pod's annotations.
        asked: By container name, what its limits request.
        product: The GPU product that the limits name; empty if they name none.
        vendor: The vendor that the limits name; empty if they name none.

    Raises:
        WordError: As ``Annotations`` raises, or a contradiction with the limits.
    """
    # ``aside``: annotations that the choice of GPUs does not depend on. ``shared``: the claim's name if pods share it.
    other_annotations, shared = annotations.aside, annotations.shared_claim
    request = annotations.request(asked if shared is None else _ask_of_shared_set(shared, asked), vendor=vendor)
    if product and request.product not in ("", product):
        raise messages.contradicts(names.PRODUCT, request.product, f"the containers' limits, which say {product}")
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
    """Return what the first container asks for, which is what all share: each of them uses all of one set.

    Raises:
        WordError: They ask for different things.
    """
    first = dict(list(asked.items())[:1])
    if any(ask not in first.values() for ask in asked.values()):
        each = "; ".join(f"container {name[:63]!r}: {described(ask)}" for name, ask in list(asked.items())[:8])
        raise WordError(
            f"{names.SHARED_CLAIM}: {shown(shared)}: each container that has GPUs uses all of the set, so write the "
            f"same limit in each; {each}"
        )
    return first


def _check_shared(resolved: Resolved) -> None:
    """Raise unless a pod may share its claim, as far as its other words go.

    Raises:
        WordError: Another word leaves nothing to share, or nobody to choose it.
    """
    if resolved.shared is msgspec.UNSET:
        return
    why = ""
    if not isinstance(resolved.request, Whole):
        why = f"pods share whole GPUs; write a limit {names.GPU_RESOURCE} and no word about parts of one"
    elif resolved.placement is not msgspec.UNSET:
        why = (
            f"{names.PLACEMENT}: {resolved.placement}: the scheduler fills a claim for each pod; "
            f"remove {names.PLACEMENT}"
        )
    elif resolved.when_full is not msgspec.UNSET:
        why = f"{names.WHEN_FULL}: {resolved.when_full}: it is placed once for all its pods; remove {names.WHEN_FULL}"
    elif resolved.gang is not msgspec.UNSET:
        why = gang_support.SHARED.why
    if why:
        raise WordError(f"{names.SHARED_CLAIM}: {shown(resolved.shared)}: {why}")


def _check_gang(resolved: Resolved) -> None:
    """Raise unless a new pod may be one of a gang; one that was admitted before goes on as it is.

    Raises:
        WordError: The pods of a gang cannot have what it says, too.
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
        WordError: There is no note, or it was changed into something that is none.
    """
    text = annotations.get(names.REQUEST)
    if text is None:
        raise WordError(f"annotation {names.REQUEST}, which the webhook writes, is missing; create the pod anew")
    try:
        if len(text) > LONGEST:
            raise WordError(f"it has {len(text)} characters, more than {LONGEST}")
        resolved = _decode(text)
        _check(resolved)
    except (WordError, ValueError, RecursionError) as error:
        told = str(error) if isinstance(error, WordError) else shown(str(error))
        raise WordError(f"annotation {names.REQUEST} was changed: {told}; create the pod anew") from None
    return resolved


def rare(annotations: Mapping[str, str]) -> Rare:
    """Return the rare fields of a resolved request's note; none without a note, or if ``read`` refuses to decode it.

    It takes a tenth of the time of ``read``, which most pods do not need.
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
        raise WordError(f"its version is {version}; {VERSION} to {NEWEST} are known")
    return _DECODER.decode(text)


def _check(resolved: Resolved) -> None:
    """Raise an error for a note that the webhook never writes.

    The note can have been changed, and the allocator and the claim's CEL take these values as they are.

    Raises:
        WordError: With the field that is not as the webhook writes it.
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
        raise WordError("its containers are not those that it asks GPUs for")
    if resolved.shared is not msgspec.UNSET and values.set_name(resolved.shared) is None:
        raise WordError("it names a claim to share that is none")
    _check_shared(resolved)
    # Each field of the request must have a value that its annotation can give.
    if (word := annotation_words.unfit(request)) is not None:
        raise WordError(f"it says {word.name} as no word can")
    if resolved.product not in (msgspec.UNSET, request.product) or resolved.product == "":
        raise WordError("its product is not the one that its limits named")
    if resolved.vendor not in (msgspec.UNSET, request.vendor) or resolved.vendor == NVIDIA.word:
        raise WordError("its vendor is not the one that its limits named")
    if request.vendor != NVIDIA.word and not isinstance(request, Whole):
        raise WordError("it asks for parts of GPUs that have none")
    if resolved.gang is not msgspec.UNSET:
        gang_annotations.check(resolved.gang)
    if resolved.idle_timeout_s is not msgspec.UNSET and resolved.idle_timeout_s < 1:
        raise WordError("it has a duration that is none")
    if resolved.nccl is not msgspec.UNSET and values.nccl(resolved.nccl) is None:
        raise WordError("it has something for NCCL that is none")
    if resolved.placement not in (msgspec.UNSET, values.STATIC) or resolved.when_full not in (
        msgspec.UNSET,
        values.HAND_OVER,
    ):
        raise WordError("it has a placement that is none")
    if resolved.spot not in (msgspec.UNSET, values.PREFER_SPOT, values.AVOID_SPOT):
        raise WordError("it says of spot nodes what no word can")

    # Fields of pods that the scheduler alone places: variables that no CDI edit replaces, and the version of the list
    # of alternatives (``ladder``).
    kept_variables = () if resolved.keep_env is msgspec.UNSET else resolved.keep_env
    if len(kept_variables) > MOST_KEPT or any(len(name) > LONGEST_KEPT for name in kept_variables):
        raise WordError("it has more variables to keep than any pod")
    if resolved.ladder is not msgspec.UNSET and resolved.ladder < 1:
        raise WordError("it has a ladder that is none")
    match request:
        case Whole():
            _check_whole(request)
        case Share():
            if not all(map(_is_valid_amount, request.amounts)) or len(request.amounts) > MOST_GPUS:
                raise WordError(f"it asks for no number of shares from 1 to {MOST_GPUS}, or for one that is none")
        case Mig():
            all_profiles = [profile for profiles in request.profiles for profile in profiles]
            if not all(request.profiles) or len(all_profiles) > MOST_GPUS or any(map(_is_no_profile, all_profiles)):
                raise WordError(f"it asks for no number of MIG slices from 1 to {MOST_GPUS}, or for one that is none")


def _check_whole(request: Whole) -> None:
    if min(request.containers) < 1 or request.gpus > MOST_GPUS:
        raise WordError(f"it asks for no number of GPUs from 1 to {MOST_GPUS}")
    if request.include or request.exclude or request.weights != Weights():
        raise WordError("it has something that no word says")


def _amounts_by_container(request: Request) -> tuple[int, ...] | tuple[Amount, ...] | tuple[tuple[str, ...], ...]:
    """What each container asks for."""
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
