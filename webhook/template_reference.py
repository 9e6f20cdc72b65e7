"""Which of a pod's claims the controller makes by a ResourceClaimTemplate: one, where no limit asks for GPUs."""

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
    """Return name and template of the ``spec.resourceClaims`` entry that has the pod's GPUs; None if limits ask.

    The webhook does not read templates. The controller finds out whether this one asks for GPUs of this driver.

    Args:
        pod: The pod as sent.
        asks: The GPUs that its limits and annotations ask for, by container.

    Raises:
        WordError: Several templates are possible, the annotation names no entry, or the pod has a claim by its name
            only.
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
            choices = _write_one_of(templates)
            raise WordError(
                f"{names.CLAIM}: {shown(named_entry)} is no entry of spec.resourceClaims with a "
                f"resourceClaimTemplateName; {choices or 'write a limit ' + names.GPU_RESOURCE + ' instead'}"
            )
        if asks:
            raise WordError(
                f"{names.CLAIM}: {shown(named_entry)} contradicts limits or words that ask for GPUs; write one of the "
                "two"
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
            f"the pod has several claims by template, and no limit {names.GPU_RESOURCE}: say which is its GPUs, "
            f"{_write_one_of(templates)} as annotation {names.CLAIM}"
        )
    return next(iter(templates.items()))


def check_names(entry: str, template: str) -> None:
    """Raise unless the names in a pod's reference to a claim template are ones that objects can have.

    Raises:
        WordError: One of them has a name that no object has.
    """
    longest = max(entry, template, key=len)
    if len(longest) > LONGEST:
        raise WordError(f"spec.resourceClaims: {shown(longest)} is longer than any object's name")


def _refuse_named_claims(pod: pod_view.Pod) -> None:
    for entry in pod.spec.resource_claims or ():
        if entry.resource_claim_name and entry.name != names.POD_CLAIM:
            raise WordError(
                f"the pod asks for no GPU but by claim {shown(entry.resource_claim_name)}, which the scheduler fills: "
                f"write what its GPUs must be into the claim, as constraints, and remove the {names.PREFIX} "
                f"annotations; or give a container a limit {names.GPU_RESOURCE}, and where pods share the GPUs write "
                f"{names.SHARED_CLAIM}"
            )


def users(pod: pod_view.Pod, entry: str) -> Asks:
    """Return the containers that use a referenced claim, each as asking for one GPU: its template says how many.

    Raises:
        WordError: No container uses it, or an init container asks for GPUs by a limit.
    """
    for container in pod.init_containers:
        if gpu_limits.asked(container.name, gpu_limits.amounts(container)):
            raise WordError(
                f"init container {container.name[:63]!r}: its limit asks for GPUs beside claim {shown(entry)}; write "
                f"resources.claims: [{{name: {entry[:63]}}}] instead"
            )
    containers = (*pod.app_containers, *pod.init_containers)
    users_of_claim = dict.fromkeys([c.name for c in containers if any(used.name == entry for used in c.claims)], 1)
    if not users_of_claim:
        raise WordError(
            f"no container uses claim {shown(entry)}: write resources.claims: [{{name: {entry[:63]}}}] in those that "
            f"want its GPUs"
        )
    # More cannot be in a resolved request. Kubernetes lets more containers share the claim.
    return dict(list(users_of_claim.items())[:MOST_GPUS])


def _write_one_of(entries: dict[str, str]) -> str:
    return f"write one of {', '.join(shown(entry) for entry in list(entries)[:8])}" if entries else ""


def check(request: Resolved, annotations: Annotations) -> None:
    """Raise if annotations say what only the referenced claim template can say: vendor, part, sharing, placement.

    Args:
        request: The request that the annotations make.
        annotations: The annotations.

    Raises:
        WordError: They do.
    """
    # A field is UNSET if no annotation sets it, or if it has the default.
    if request.placement == values.STATIC:
        raise WordError(
            f"{names.PLACEMENT}: {values.STATIC}: the scheduler places a pod by its own template where no word of ours "
            f"is said: remove all {names.PREFIX} annotations"
        )
    if (vendor := annotations.said.get(names.VENDOR)) is not None:
        raise WordError(
            f"{names.VENDOR}: {shown(vendor)}: the class in the claim's template says whose GPUs they "
            "are; remove the annotation"
        )
    if request.shared is not msgspec.UNSET:
        raise WordError(
            f"{names.SHARED_CLAIM}: {shown(request.shared)}: a claim that a template makes is one pod's, and drivers "
            f"of NICs serve one pod a claim; write a limit {names.GPU_RESOURCE} instead of the template"
        )
    if not isinstance(request.request, Whole):
        raise WordError("the pod's claim is made by a template, which says what part of a GPU it is: remove the words")
    if request.when_full == values.HAND_OVER:
        # ``hand-over``: if the cluster is full, the scheduler alone places the pod. Its claim must then express the
        # annotations. The number of GPUs is in the template: check for two, because annotations about sets matter from
        # two on.
        with_two_gpus = msgspec.structs.replace(request.request, containers=(2,))
        try:
            claim_alternatives.demanding({"devices": {"requests": []}}, with_two_gpus)
        except WordError as error:
            raise WordError(f"{names.WHEN_FULL}: {values.HAND_OVER} contradicts another word: {error}") from None


def advice(pod: pod_view.Pod, resolved: Resolved, own: tuple[str, str] | None) -> tuple[str, ...]:
    """Return a warning if a pod wants near NICs and refers to claims whose NICs are not chosen with its GPUs.

    What is asked for in its other claims nobody knows here: the controller reads the claim that has the GPUs.

    Args:
        pod: The pod as sent.
        resolved: What its words come to.
        own: The entry that is its GPUs, and its template; None where limits say them.
    """
    if not isinstance(resolved.request, Whole) or not resolved.request.near_nic or resolved.placement == values.STATIC:
        return ()
    gpu_entry = names.POD_CLAIM if own is None else own[0]
    others = [shown(entry.name) for entry in pod.spec.resource_claims or () if entry.name != gpu_entry]
    if not others:
        return ()
    named = ", ".join(others[:_MAX_NAMED]) + (" and others" if len(others) > _MAX_NAMED else "")
    return (
        f"{names.NEAR_NIC}: NICs in other claims of the pod ({named}) are not chosen with its GPUs, and may be far "
        "from them or on none of their nodes: ask for them in the template that asks for the GPUs",
    )
