"""CREATE of a pod with GPU limits and without the driver's annotations, in namespaces with a label for it.

The chart selects these namespaces (``webhook.translate``), and the API server sends only their pods to this path. The
driver chooses the best free GPUs for these pods, as for pods with annotations. From then on they are pods of this
driver, so their updates are handled as those of all others.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.policies.policy_sections import Policies
from dradriver.api.vocabulary import messages
from webhook import bounds, create, desired, gpu_limits, pod_view

_ON_A_NODE: Final = (
    "a pod that names its node skips kube-scheduler and gets no claims, so its GPU limits are not translated. Remove "
    "spec.nodeName and write a nodeSelector kubernetes.io/hostname."
)


def translate(pod: pod_view.Pod, policies: Policies) -> tuple[desired.Desired | None, list[str]]:
    """Return the desired fields of a created pod with limits only, and warnings.

    The first value is None if the pod stays unchanged. A pod with ``spec.nodeName`` stays unchanged, with a warning. It
    is not refused, because it can be the API object that the kubelet creates for a static pod, which runs in any case.

    Args:
        pod: The pod as sent.
        policies: The policies in force.

    Raises:
        WordError: A limit is invalid or not supported, or ``create`` refuses the pod.
    """
    if not pod.is_marked:
        bounds.check(pod)
        if not gpu_limits.asks(pod):
            return None, []
        if pod.spec.node_name:
            return None, [f"spec.nodeName: {messages.shown(pod.spec.node_name)}: {_ON_A_NODE}"]
    return create.create(pod, policies, by_limits=True)
