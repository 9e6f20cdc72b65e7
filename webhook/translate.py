"""CREATE of a pod that says nothing in our words and asks for GPUs by limits, where such pods are translated.

Which namespaces these are is the chart's to say (``webhook.translate``); the API server asks here for no other pod. A
pod gets what its limits ask for, the best that is free, as one with words does; from then on it is ours, so that its
updates take the way of all others.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.policies.policy_sections import Policies
from dradriver.api.vocabulary import messages
from webhook import bounds, create, desired, gpu_limits, pod_view

_ON_A_NODE: Final = (
    "not translated: a pod that names its node is never scheduled, and only the scheduler hands out claims; remove it "
    "and write a nodeSelector kubernetes.io/hostname"
)


def translate(pod: pod_view.Pod, policies: Policies) -> tuple[desired.Desired | None, list[str]]:
    """Return the translation of a created pod's limits: its desired fields and warnings; None if it stays as it is.

    A pod on a node that its author chose stays, with a warning: the kubelet announces its static pods like that, and
    nothing is won by refusing them.

    Args:
        pod: The pod as sent.
        policies: Those in force.

    Raises:
        WordError: A limit that is none or cannot be had, or whatever ``create`` refuses.
    """
    if not pod.is_marked:
        bounds.check(pod)
        if not gpu_limits.asks(pod):
            return None, []
        if pod.spec.node_name:
            return None, [f"spec.nodeName: {messages.shown(pod.spec.node_name)}: {_ON_A_NODE}"]
    return create.create(pod, policies, by_limits=True)
