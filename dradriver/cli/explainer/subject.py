"""The subject of ``gputopo explain``: the facts on the pod object, shown while the cluster is being read.

For a fast first output this module must not import numpy.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dradriver.allocator.choice import phrases
from dradriver.allocator.parts import part_phrases
from dradriver.allocator.request import NEAR_PREFERRED, Strategy, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import is_written
from dradriver.api.pod.resolved import Resolved
from dradriver.api.vocabulary.container_limits import WHOLE
from dradriver.cli.explainer.model import Subject
from dradriver.counted import counted
from dradriver.topology.vendors import VENDORS
from dradriver.view.terminal_text import plain

_WORDS: Final = (
    f"an annotation such as {names.POLICY}: best-effort, which asks for the best set that is free; pods without any "
    f"annotation {names.PREFIX}… are left alone"
)
_WEBHOOK: Final = (
    f"the label {names.LABEL}, which the webhook writes: it did not see this pod. Check whether it runs (kubectl "
    "get mutatingwebhookconfigurations) and whether it leaves out this namespace. Then create the pod again"
)


def subject(pod: Pod) -> Subject:
    """Return the facts on a pod object for ``gputopo explain``, without a look at the cluster."""
    noted = _noted(pod)
    return Subject(
        namespace=plain(pod.metadata.namespace),
        pod=plain(pod.metadata.name),
        state=_state(pod),
        wish=plain(noted if isinstance(noted, str) else _by_template(pod, wish(noted))),
        request=None if isinstance(noted, str) else msgspec.to_builtins(noted.request),
        created=plain(pod.metadata.creation_timestamp or ""),
        node=plain(pod.spec.node_name),
        said=plain(pod.metadata.annotations.get(names.REASON, "")),
        lacks=tuple(_lacks(pod)),
        refused=plain(pod.refused or ""),
    )


def wish(resolved: Resolved) -> str:
    """Return a pod's request in words, from the annotation that the webhook wrote on the pod."""
    request = resolved.request
    request_text = phrases.wanted(request) if isinstance(request, Whole) else part_phrases.wanted(request)
    details = []
    if isinstance(request, Whole):
        if request.preferred:
            details.append(f"preferred: {', then '.join(word.value for word in request.preferred)}, else any")
        if request.prefer_same_numa:
            details.append("fewest NUMA nodes")
        if request.near_nic == NEAR_PREFERRED:
            details.append("rather with a NIC near each GPU")
    if request.strategy is not Strategy.BEST_FIT:
        details.append(f"strategy {request.strategy.value}")
    if len(resolved.containers) > 1:
        details.append(f"for containers {', '.join(resolved.containers)}")
    if resolved.shared is not msgspec.UNSET:
        details.append(f"one set with all pods that share claim {resolved.shared}")
    if resolved.gang is not msgspec.UNSET:
        details.append(_gang(resolved.gang))
    if resolved.nccl is not msgspec.UNSET:
        details.append(f"{VENDORS[request.vendor].library}: {resolved.nccl}")
    return "; ".join([request_text, *details])


def _gang(wants: Gang) -> str:
    """Return the requirements on the pod's gang in words."""
    least, most = wants.size or (0, 0)
    pods = f" of {least} to {most} pods" if least < most else f" of {counted(most, 'pod')}" if most else ""
    said = [f"in gang {wants.written}{pods}" if wants.written else f"in a gang{pods}"]
    if wants.near is not None:
        said.append(("if it can be near " if wants.near.preferred else "near ") + wants.near.level)
    if wants.max_nodes is not None:
        said.append(f"on at most {counted(wants.max_nodes, 'node')}")
    if wants.min_gpus_per_node is not None:
        said.append(f"at least {counted(wants.min_gpus_per_node, 'GPU')} a node")
    if wants.min_network_gbps is not None:
        said.append(f"at least {wants.min_network_gbps:g} GB/s of network")
    return ", ".join(said)


def _by_template(pod: Pod, said: str) -> str:
    """Return the request text ``said``, with the template's name instead of the number of GPUs.

    The text is returned unchanged if the pod names no ResourceClaimTemplate.
    """
    if pod.template is None:
        return said
    _, name = pod.template
    return re.sub(r"^\d+ GPUs?", lambda _: f"what ResourceClaimTemplate {name} asks for", said)


def _noted(pod: Pod) -> Resolved | str:
    """Return the request that the webhook wrote on a pod, or the error if it cannot be read.

    For a pod that this driver does not place, the result is an empty text.
    """
    if not (pod.placed or pod.static):
        return ""
    try:
        return resolved.read(pod.metadata.annotations)
    except WordError as error:
        return str(error)


def deletion(pod: Pod) -> str:
    """Return a sentence that a pod is being deleted, and what follows for its GPUs; empty if it is not.

    Kubernetes sets ``deletionTimestamp`` to the end of the grace period.
    """
    if pod.metadata.deletion_timestamp is None:
        return ""
    if not pod.spec.node_name:
        return "The pod is being deleted and gets no place."
    return (
        f"The pod is being deleted. Its grace period ends at {pod.metadata.deletion_timestamp}. Its GPUs are free when "
        "its containers have ended and the node agent has released them. If that takes longer, run gputopo health."
    )


def _state(pod: Pod) -> str:
    if not (pod.placed or pod.static):
        return "foreign"
    if pod.finished:
        return "finished"
    if pod.metadata.deletion_timestamp is not None:
        return "deleting"
    if pod.spec.node_name:
        return "placed"
    if pod.static:
        return "static"
    # A reason on a lifted pod is that of a promise that has ended.
    return "waits" if pod.gated or names.REASON in pod.metadata.annotations else "tentative"


def _lacks(pod: Pod) -> list[str]:
    if pod.placed or pod.static:
        return []
    has_annotations = any(names.is_ours(key) and not is_written(key) for key in pod.metadata.annotations)
    lacking = [_WEBHOOK if has_annotations else _WORDS]
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    limits = {key for container in containers for key in container.resources.limits}
    lacking += [
        f"its limit {resource} is for a device plugin, or for a DeviceClass with that extendedResourceName. The "
        "driver does not choose its GPUs"
        for resource in sorted(WHOLE & limits)
        if not has_annotations
    ]
    templates = [claim for claim in pod.spec.resource_claims if claim.resource_claim_template_name]
    if templates:
        lacking.append(
            f"its claim {plain(templates[0].name)} is made from a ResourceClaimTemplate: the scheduler alone chooses "
            "its devices, by the template's selectors"
        )
    return lacking
