"""Pods that the scheduler places alone, at once or for want of a place: what of their words it can follow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from dradriver.allocator.request import Share, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims import exclusive, search_limits
from dradriver.api.claims.pins import KEEP
from dradriver.api.pod import claim_alternatives
from dradriver.api.pod.resolved import LONGEST_KEPT, MOST_KEPT, VERSION, Resolved
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.vocabulary import annotation_words, values
from dradriver.topology.vendors import NVIDIA, VENDORS
from webhook import pod_view

MOST_BYTES: Final = 1 << 17  # of JSON: one container's environment


class _EnvVar(msgspec.Struct, frozen=True, gc=False):
    name: str


_ENV: Final = msgspec.json.Decoder(list[_EnvVar] | None)


def check(resolved: Resolved, policies: Policies) -> None:
    """Raise unless the scheduler can follow the annotations of a ``static`` pod.

    The scheduler places such a pod alone.

    Raises:
        WordError: A word that no claim can say, more than the scheduler can search for, or a share of GPUs that the
            scheduler gives none of; the message names the word that asks for such a claim, too.
    """
    # The annotations by which the scheduler alone places a pod, at once or if the cluster is full; UNSET without one.
    causes = {names.PLACEMENT: resolved.placement, names.WHEN_FULL: resolved.when_full}
    for key, value in causes.items():
        if isinstance(value, str):
            # 1. A claim can express the annotations. 2. The scheduler's search for it is bounded.
            try:
                spec = claim_alternatives.spec(resolved)
            except WordError as error:
                raise WordError(f"{key}: {value} contradicts another word: {error}") from None
            try:
                search_limits.check(spec)
            except WordError as error:
                raise WordError(f"{key}: {value}: {error}. Remove it, and the driver chooses the GPUs") from None
            if isinstance(resolved.request, Share) and exclusive.every(policies):
                raise WordError(
                    f"{key}: {value} leaves the share to kube-scheduler, which does not know that every GPU that is "
                    f"shared has parts of one namespace at a time (exclusiveTo in the policies file): remove it, and "
                    f"the driver chooses the GPU"
                )


def advice(resolved: Resolved) -> list[str]:
    """Return warnings of links in a ``static`` pod's words that the scheduler finds on few machines."""
    request = resolved.request
    size = claim_alternatives.larger_group(request)
    if not isinstance(request, Whole) or size is None:
        return []
    causes = {names.PLACEMENT: resolved.placement, names.WHEN_FULL: resolved.when_full}
    limitation = (
        f"kube-scheduler finds links among {request.gpus} GPUs only where all {size} GPUs of a group are linked with "
        f"each other"
    )
    if VENDORS[request.vendor] is NVIDIA:
        limitation += ", as by NVSwitch, and not on machines like the DGX-1"
    return [f"{key}: {value}: {limitation}" for key, value in causes.items() if isinstance(value, str)]


def is_static(resolved: Resolved) -> bool:
    """Return whether a pod is ``static``: the scheduler alone places it."""
    return resolved.placement == values.STATIC


def noted(resolved: Resolved, keep_env: tuple[str, ...]) -> Resolved:
    """Return what is noted of a ``static`` pod: all that the template of its claim is made from."""
    return msgspec.structs.replace(
        resolved,
        version=annotation_words.version(resolved.request, VERSION),  # without what is left out here
        keep_env=keep_env or msgspec.UNSET,
        ladder=claim_alternatives.VERSION,
        spot=msgspec.UNSET,
    )


def kept(pod: pod_view.Pod, containers: Collection[str]) -> tuple[str, ...]:
    """Return the variables of a ``static`` pod's containers that no edit of a claim may replace.

    Raises:
        WordError: An environment is none, or has more of them than any pod.
    """
    # CDI edits set variables with the prefixes of ``KEEP``. Those that the author set must stay.
    protected: set[str] = set()
    for container in (*pod.containers, *pod.init_containers):
        if container.name in containers and not pod_view.same(container.env, pod_view.ABSENT):
            where = f"container {container.name[:63]!r}: env"
            if len(memoryview(container.env)) > MOST_BYTES:
                raise WordError(f"{where}: more than {MOST_BYTES} bytes of JSON; use a ConfigMap")
            variables = pod_view.decode(_ENV, container.env, "env: ") or ()
            protected.update(variable.name for variable in variables if variable.name.startswith(KEEP))
    if len(protected) > MOST_KEPT or any(len(name) > LONGEST_KEPT for name in protected):
        raise WordError(
            f"more than {MOST_KEPT} variables that begin with {', '.join(KEEP)}, or one of more than {LONGEST_KEPT} "
            f"characters; use a ConfigMap"
        )
    return tuple(sorted(protected))
