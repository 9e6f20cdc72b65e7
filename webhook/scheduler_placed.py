"""Checks pods for which kube-scheduler alone chooses the GPUs: which annotations it can follow.

With ``placement: static``, kube-scheduler chooses at once. With ``when-full: hand-over``, it chooses if the controller
finds no place. ``create`` and ``update`` call this module.
"""

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
    """Raise unless the scheduler can follow the annotations of a pod for which it may choose the GPUs.

    These are pods with ``placement: static`` or ``when-full: hand-over``. Nothing is raised for other pods.

    Raises:
        WordError: A claim cannot express an annotation, the scheduler's search would take too long, or the scheduler
            cannot give the requested share. The message also names the annotation that lets the scheduler choose.
    """
    # The annotations by which the scheduler alone places a pod, at once or if the cluster is full; UNSET without one.
    causes = {names.PLACEMENT: resolved.placement, names.WHEN_FULL: resolved.when_full}
    for key, value in causes.items():
        if isinstance(value, str):
            # 1. A claim can express the annotations. 2. The scheduler's search for it is bounded.
            try:
                spec = claim_alternatives.spec(resolved)
            except WordError as error:
                raise WordError(f"{key}: {value} contradicts another annotation: {error}") from None
            try:
                search_limits.check(spec)
            except WordError as error:
                raise WordError(
                    f"{key}: {value}: {error} Remove the annotation to let the driver choose the GPUs."
                ) from None
            if isinstance(resolved.request, Share) and exclusive.every(policies):
                raise WordError(
                    f"{key}: {value} lets kube-scheduler place the share, but the policies file limits each shared "
                    f"GPU to one namespace (exclusiveTo), which kube-scheduler does not read. Remove the annotation "
                    f"to let the driver choose the GPU."
                )


def advice(resolved: Resolved) -> list[str]:
    """Return warnings if the scheduler can find the required links only on few machines.

    The list is empty for pods without ``placement: static`` and ``when-full: hand-over``.
    """
    request = resolved.request
    size = claim_alternatives.larger_group(request)
    if not isinstance(request, Whole) or size is None:
        return []
    causes = {names.PLACEMENT: resolved.placement, names.WHEN_FULL: resolved.when_full}
    limitation = (
        f"kube-scheduler finds {request.gpus} linked GPUs only on machines that link all {size} GPUs of a group with "
        f"each other"
    )
    if VENDORS[request.vendor] is NVIDIA:
        limitation += ", for example by NVSwitch. It finds none on machines such as the DGX-1"
    return [f"{key}: {value}: {limitation}." for key, value in causes.items() if isinstance(value, str)]


def is_static(resolved: Resolved) -> bool:
    """Return whether a pod is ``static``: the scheduler alone places it."""
    return resolved.placement == values.STATIC


def noted(resolved: Resolved, keep_env: tuple[str, ...]) -> Resolved:
    """Return the resolved request for the note (an annotation) on a ``static`` pod.

    The scheduler alone places a ``static`` pod. The template of its claim is made from this note, so the note has
    everything that the template needs.

    Args:
        resolved: The resolved request.
        keep_env: The author's environment variables that the driver must not replace.
    """
    return msgspec.structs.replace(
        resolved,
        version=annotation_words.version(resolved.request, VERSION),  # without what is left out here
        keep_env=keep_env or msgspec.UNSET,
        ladder=claim_alternatives.VERSION,
        spot=msgspec.UNSET,
    )


def kept(pod: pod_view.Pod, containers: Collection[str]) -> tuple[str, ...]:
    """Return the environment variables of these containers that the node agent must not replace.

    The author set them, and the node agent sets variables with the same prefixes by CDI. These variables are noted for
    a pod that only the scheduler places (``static``).

    Raises:
        WordError: An environment is invalid, or has more or longer such variables than are supported.
    """
    # CDI edits set variables with the prefixes of ``KEEP``. Those that the author set must stay.
    protected: set[str] = set()
    for container in (*pod.containers, *pod.init_containers):
        if container.name in containers and not pod_view.same(container.env, pod_view.ABSENT):
            where = f"container {container.name[:63]!r}: env"
            if len(memoryview(container.env)) > MOST_BYTES:
                raise WordError(f"{where}: more than {MOST_BYTES} bytes of JSON. Move the variables to a ConfigMap.")
            variables = pod_view.decode(_ENV, container.env, "env: ") or ()
            protected.update(variable.name for variable in variables if variable.name.startswith(KEEP))
    if len(protected) > MOST_KEPT or any(len(name) > LONGEST_KEPT for name in protected):
        raise WordError(
            f"The pod has more than {MOST_KEPT} variables that begin with {', '.join(KEEP)}, or one with more than "
            f"{LONGEST_KEPT} characters. Move them to a ConfigMap."
        )
    return tuple(sorted(protected))
