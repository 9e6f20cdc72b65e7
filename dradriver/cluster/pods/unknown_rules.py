"""Finds rules about a pod's nodes that only the scheduler can evaluate.

``Books.only_scheduler_knows`` calls this module. The controller narrows a pod to a few nodes for good. A rule that the
controller cannot evaluate may keep the pod from all of these nodes. Then the pod could never start.
"""

from __future__ import annotations

from collections.abc import Callable

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.vocabulary.messages import shown
from dradriver.cluster.nodes import host_ports
from dradriver.cluster.pods import pod_rules, volumes
from dradriver.reason import Cause, Reason


def what_only_the_scheduler_knows(
    pod: Pod,
    *,
    is_known_claim: Callable[[Key], bool],
    is_known_template: Callable[[Key], bool],
    has_too_many: Callable[[Pod], bool],
    class_of_existing: Callable[[Pod], str],
) -> Reason | None:
    """Return the first rule of a pod that only the scheduler can evaluate.

    None if the controller can evaluate all rules of the pod.

    Args:
        pod: The pod.
        is_known_claim: Returns whether another driver's ResourceClaim is allocated, so that its nodes are known.
        is_known_template: Returns whether a ResourceClaimTemplate is for a channel of multi-node NVLink. The controller
            knows the nodes with a free channel before the claim is allocated.
        has_too_many: Returns whether a pod's rules concern more pods than the controller looks at.
        class_of_existing: Returns the StorageClass if the pod needs an existing volume of the class, such as a local
            disk; else an empty text.
    """
    return (
        _claims(pod, is_known_claim, is_known_template)
        or _pods(pod, has_too_many)
        or _volumes(pod, class_of_existing(pod))
    )


def _claims(pod: Pod, is_known_claim: Callable[[Key], bool], is_known_template: Callable[[Key], bool]) -> Reason | None:
    if not pod.spec.resource_claims:
        return None
    gpus = pod.gpu_entry
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    for entry in pod.spec.resource_claims:
        if entry.name == gpus:
            continue
        named, template = entry.resource_claim_name, entry.resource_claim_template_name
        claim = named or made.get(entry.name)
        if claim and is_known_claim((pod.metadata.namespace, claim)):
            continue
        if template and is_known_template((pod.metadata.namespace, template)):
            continue
        which = f"ResourceClaimTemplate {shown(template)}" if template else f"ResourceClaim {shown(named or '')}"
        return _reason(f"which nodes have the devices of {which}")
    return None


def _pods(pod: Pod, has_too_many: Callable[[Pod], bool]) -> Reason | None:
    if not pod_rules.has_rules(pod):
        return None
    if pod_rules.has_many_labels(pod):
        return _reason(
            f"what pod affinity and topology spread with more than {pod_rules.MOST_TERMS} terms or {pod_rules.MOST} "
            "labels select"
        )
    if pod_rules.has_unknown_spread(pod):
        return _reason("which nodes a topology spread with minDomains leaves")
    if pod_rules.has_many_ports(pod):
        return _reason(f"which nodes have more than {host_ports.MOST} host ports free")
    if pod_rules.has_unknown_namespaces(pod):
        return _reason("the labels of namespaces, by which the pod's affinity selects pods")
    if has_too_many(pod):
        return _reason("on which nodes the many pods are that the pod's affinity and topology spread select")
    return None


def _volumes(pod: Pod, class_of_existing: str) -> Reason | None:
    if class_of_existing:
        return _reason(f"which nodes have a free volume of StorageClass {shown(class_of_existing)}")
    if volumes.has_more_claims(pod):
        return _reason(f"where the volumes of a pod with more than {volumes.MOST_CLAIMS} PersistentVolumeClaims are")
    return None


def _reason(what: str) -> Reason:
    return Reason(Cause.SCHEDULER, f"Only the scheduler knows {what}.")
