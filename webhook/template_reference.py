"""Finds which claim of a pod has its GPUs, if the pod has no GPU limits but refers to a ResourceClaimTemplate.

An *entry* is an element of the pod's ``spec.resourceClaims``; it names a claim or a template. The annotation ``claim``
says which entry is for the GPUs. If the pod has only one entry with a template, the annotation is not needed. The
controller makes the claim with the GPUs from this template. ``create`` and ``update`` call this module.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.pod import claim_alternatives
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved
from dradriver.api.vocabulary import values
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.values import MOST_GPUS
from webhook import gpu_limits, pod_view
from webhook.gpu_limits import Asks

LONGEST: Final = 253  # characters of an object's name
_MAX_NAMED: Final = 4  # claims that a warning names


def meant(pod: pod_view.Pod, asks: Asks) -> tuple[str, str] | None:
    """Return the name and the template of the ``spec.resourceClaims`` entry for a pod's GPUs.

    None if limits request the GPUs. The webhook does not read templates. The controller finds out whether the template
    requests GPUs of this driver.

    Args:
        pod: The pod as sent.
        asks: The GPUs that its limits and annotations request, by container.

    Raises:
        WordError: Several templates are possible and no annotation ``claim`` says which one is meant. Or the annotation
            names an entry that the pod does not have, or contradicts limits. Or the pod refers to a claim by its name
            instead of a template.
    """
    templates = {
        entry.name: entry.resource_claim_template_name
        for entry in pod.spec.resource_claims or ()
        if entry.resource_claim_template_name and entry.name != names.POD_CLAIM
    }
    # By the name of the entry. An entry with the driver's own name is the claim that this webhook added.
    for entry, template in templates.items():
        check_names(entry, template)

    # 1. The annotation ``claim`` names the entry.
    named_entry = pod.words.get(names.CLAIM)
    if named_entry is not None:
        if named_entry not in templates:
            choices = _write_one_of(templates) or f"Write the limit {names.GPU_RESOURCE} instead."
            raise WordError(
                f"{names.CLAIM}: {shown(named_entry)} is not an entry of spec.resourceClaims with a "
                f"resourceClaimTemplateName. {choices}"
            )
        if asks:
            raise WordError(
                f"{names.CLAIM}: {shown(named_entry)} contradicts limits or annotations that request GPUs. Write only "
                f"one of the two."
            )
        return named_entry, templates[named_entry]

    # 2. Limits ask for the GPUs, or the pod has no annotation of ours, so its templates are its own business.
    if not pod.words or any(container.name in asks for container in pod.app_containers):
        return None

    # 3. Otherwise the only template has them.
    if not templates:
        if not asks:
            _refuse_named_claims(pod)
        return None
    if len(templates) > 1:
        raise WordError(
            f"The pod has several claims from templates and no limit {names.GPU_RESOURCE}, so it is not clear which "
            f"claim has the GPUs. {_write_one_of(templates)} Write it as the annotation {names.CLAIM}."
        )
    return next(iter(templates.items()))


def check_names(entry: str, template: str) -> None:
    """Raise if ``entry`` or ``template`` is longer than the name of an object can be.

    They are the names in a pod's reference to a claim template.

    Raises:
        WordError: One of them is too long.
    """
    longest = max(entry, template, key=len)
    if len(longest) > LONGEST:
        raise WordError(f"spec.resourceClaims: {shown(longest)} is longer than the name of an object can be.")


def _refuse_named_claims(pod: pod_view.Pod) -> None:
    for entry in pod.spec.resource_claims or ():
        if entry.resource_claim_name and entry.name != names.POD_CLAIM:
            raise WordError(
                f"The pod requests GPUs only by claim {shown(entry.resource_claim_name)}, which kube-scheduler "
                f"allocates. Write the requirements into the claim as constraints, and remove the {names.PREFIX} "
                f"annotations. Or give a container the limit {names.GPU_RESOURCE}, and write {names.SHARED_CLAIM} if "
                f"pods share the GPUs."
            )


def users(pod: pod_view.Pod, entry: str) -> Asks:
    """Return the containers that use the claim with the pod's GPUs, each with a request for one GPU.

    The number is a placeholder, because only the claim template has the real number. At most ``MOST_GPUS`` containers
    are returned.

    Args:
        pod: The pod as sent.
        entry: The name of the claim's entry in ``spec.resourceClaims``.

    Raises:
        WordError: No container uses the claim, or an init container requests GPUs by a limit.
    """
    for container in pod.init_containers:
        if gpu_limits.asked(container.name, gpu_limits.amounts(container)):
            raise WordError(
                f"init container {container.name[:63]!r}: its limit requests GPUs in addition to claim "
                f"{shown(entry)}. Write resources.claims: [{{name: {entry[:63]}}}] instead."
            )
    containers = (*pod.app_containers, *pod.init_containers)
    users_of_claim = dict.fromkeys([c.name for c in containers if any(used.name == entry for used in c.claims)], 1)
    if not users_of_claim:
        raise WordError(
            f"No container uses claim {shown(entry)}. Write resources.claims: [{{name: {entry[:63]}}}] in the "
            f"containers that need its GPUs."
        )
    # More cannot be in a resolved request. Kubernetes lets more containers share the claim.
    return dict(list(users_of_claim.items())[:MOST_GPUS])


def _write_one_of(entries: dict[str, str]) -> str:
    return f"Choose one of: {', '.join(shown(entry) for entry in list(entries)[:8])}." if entries else ""


def check(request: Resolved, annotations: Annotations) -> None:
    """Raise if annotations request something that only the claim template may request.

    The annotations must not request a vendor, a fraction, a shared claim or ``placement: static``. With ``when-full:
    hand-over``, they must be annotations that a claim can express.

    Args:
        request: The request that the annotations make.
        annotations: The annotations.

    Raises:
        WordError: An annotation breaks one of these rules.
    """
    # A field is UNSET if no annotation sets it, or if it has the default.
    if request.placement == values.STATIC:
        raise WordError(
            f"{names.PLACEMENT}: {values.STATIC}: kube-scheduler places a pod by its own template only if the pod has "
            f"no {names.PREFIX} annotations. Remove all of them."
        )
    if (vendor := annotations.said.get(names.VENDOR)) is not None:
        raise WordError(
            f"{names.VENDOR}: {shown(vendor)}: the device class in the claim's template decides the vendor. Remove "
            f"the annotation."
        )
    if request.shared is not msgspec.UNSET:
        raise WordError(
            f"{names.SHARED_CLAIM}: {shown(request.shared)}: a claim from a template belongs to one pod and cannot be "
            f"shared. Write the limit {names.GPU_RESOURCE} instead of the template."
        )
    if not isinstance(request.request, Whole):
        raise WordError(
            "The pod's claim comes from a template, which says what fraction of a GPU it is. Remove the annotations "
            "about fractions."
        )
    if request.when_full == values.HAND_OVER:
        # ``hand-over``: if the cluster is full, the scheduler alone places the pod. Its claim must then express the
        # annotations. The number of GPUs is in the template: check for two, because annotations about sets matter from
        # two on.
        with_two_gpus = msgspec.structs.replace(request.request, containers=(2,))
        try:
            claim_alternatives.demanding({"devices": {"requests": []}}, with_two_gpus)
        except WordError as error:
            raise WordError(f"{names.WHEN_FULL}: {values.HAND_OVER} contradicts another annotation: {error}") from None


def advice(pod: pod_view.Pod, resolved: Resolved, own: tuple[str, str] | None) -> tuple[str, ...]:
    """Return a warning if the controller cannot choose some of the pod's NICs near its GPUs.

    The controller reads only the claim with the GPUs, and chooses NICs only for this claim. The webhook does not know
    whether the pod's other claims request NICs. So it warns about every pod that wants near NICs and has other claims.

    Args:
        pod: The pod as sent.
        resolved: The resolved request of its annotations.
        own: The entry with its GPUs, and its template; None if limits request the GPUs.
    """
    if not isinstance(resolved.request, Whole) or not resolved.request.near_nic or resolved.placement == values.STATIC:
        return ()
    gpu_entry = names.POD_CLAIM if own is None else own[0]
    others = [shown(entry.name) for entry in pod.spec.resource_claims or () if entry.name != gpu_entry]
    if not others:
        return ()
    named = ", ".join(others[:_MAX_NAMED]) + (" and others" if len(others) > _MAX_NAMED else "")
    return (
        f"{names.NEAR_NIC}: NICs of other claims of the pod ({named}) are not chosen together with its GPUs. Request "
        f"them in the template that requests the GPUs.",
    )
