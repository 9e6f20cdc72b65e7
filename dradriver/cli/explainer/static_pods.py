"""The verdict of ``gputopo explain`` on static pods, which the scheduler alone places: what they wait for."""

from __future__ import annotations

from typing import Final

from dradriver.allocator.request import Request, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Claim
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import gpu_sets
from dradriver.cli.explainer.model import Free, Static, Verdict
from dradriver.cli.explainer.shown_places import place_by_scheduler
from dradriver.cli.explainer.subject import deletion
from dradriver.cluster.nodes.pod_demands import ask_of
from dradriver.reason import sentences
from dradriver.view.terminal_text import plain

_ENTRY: Final = "resource.kubernetes.io/pod-claim-name"
"""Of a claim that Kubernetes made by a template: the pod's entry that it is for (resourceclaim controller)."""


def claim_of(scene: Scene, pod: Pod) -> Claim | None:
    """Return the claim that Kubernetes made for a static pod; None if there is none.

    The scheduler alone places a static pod.
    """
    for claim in scene.claims.values():
        if claim.owned_by(pod.metadata.uid) and claim.metadata.annotations.get(_ENTRY) == names.POD_CLAIM:
            return claim
    return None


async def static(scene: Scene, pod: Pod, claim: Claim | None) -> Verdict:
    """Return the verdict of ``gputopo explain`` on a static pod, which the scheduler alone places.

    Args:
        scene: The cluster, read; ``scene.picture`` is the cluster cache, as the controller has it.
        pod: The pod.
        claim: The claim that Kubernetes made for it; None if there is none yet.
    """
    try:
        request = resolved.read(pod.metadata.annotations).request
    except WordError as error:
        return Verdict(reason=str(error))
    deleted = deletion(pod)
    if deleted and not pod.spec.node_name:
        return Verdict(reason=deleted)
    # Slices, claims or nodes could not be read, or no slice is published, so the pod's place is not known. What the
    # scheduler says of the pod stands in the pod itself.
    if not scene.whole:
        return Verdict(reason=deleted or scheduler_message(pod))
    place = None if claim is None else place_by_scheduler(scene, claim.key, request)
    if pod.spec.node_name:
        return Verdict(reason=deleted, place=place)

    # The pod waits: the template, the claim and its devices come one after another, and one of them is missing.
    entry = next((entry for entry in pod.spec.resource_claims if entry.name == names.POD_CLAIM), None)
    template = (entry and entry.resource_claim_template_name) or ""
    has_template = None  # not known
    if await scene.read_templates(pod.metadata.namespace):
        has_template = (pod.metadata.namespace, template) in scene.picture.templates.known
    progress = Static(
        template=plain(template),
        there=has_template,
        claim="" if claim is None else plain(claim.metadata.name),
        allocated=claim is not None and claim.status.allocation is not None,
    )
    return Verdict(
        reason=_waiting_reason(pod, progress), static=progress, place=place, free=await free(scene, pod, request)
    )


def _waiting_reason(pod: Pod, progress: Static) -> str:
    """Return what a static pod waits for: its template, its claim, the claim's devices, or the scheduler.

    ``progress`` says which of these exist.
    """
    if progress.allocated:
        return f"The claim of the pod is allocated. {scheduler_message(pod)}"
    if progress.claim:
        return scheduler_message(pod)
    if progress.there is False and progress.template != claim_alternatives.template_name(
        pod.metadata.annotations[names.REQUEST]
    ):
        name = progress.template
        return f"ResourceClaimTemplate {name} does not match the annotations of the pod. Create the pod again."
    if progress.there is False:
        return (
            f"The controller has not created ResourceClaimTemplate {progress.template} yet. If this lasts, look at the "
            "Events of the pod, and whether a controller runs."
        )
    return f"Kubernetes has not created the claim from ResourceClaimTemplate {progress.template} yet."


def scheduler_message(pod: Pod) -> str:
    """Return the scheduler's message in the condition of a pod that it has not bound, static or not."""
    return (
        "The scheduler has not bound it yet."
        if pod.refused is None
        else sentences(f"The scheduler finds no room for it: {pod.refused}")
    )


async def free(scene: Scene, pod: Pod, request: Request) -> Free | None:
    """Return the free GPUs for a static pod, as ``gputopo explain`` shows them.

    A static pod is one that the scheduler alone places. None if the pod requests fractions of GPUs.
    """
    if not isinstance(request, Whole):
        return None
    ask = ask_of(pod)
    first = gpu_sets.free(scene, request, scene.picture.nodes.eligible(ask), "")
    await scene.fill([room.node for room in first.best])
    return gpu_sets.free(scene, request, scene.picture.nodes.eligible(ask), "")
