"""The pods of the driver's components, and the arguments with which they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

Pod = Mapping[str, Any]

COMPONENT: Final = "app.kubernetes.io/component"
_PART_OF: Final = ("app.kubernetes.io/part-of", "gpu-topology")
NODE: Final = "node"
WEBHOOK: Final = "webhook"
CONTROLLER: Final = "controller"
LEASE: Final = "gpu-topology-controller"  # of the controller that leads
SELECTOR: Final = f"{COMPONENT}={NODE},{_PART_OF[0]}={_PART_OF[1]}"
WEBHOOK_SELECTOR: Final = f"{COMPONENT}={WEBHOOK},{_PART_OF[0]}={_PART_OF[1]}"  # of the webhook's configurations
_OVER: Final = ("Succeeded", "Failed")


def pods_of(pods: Iterable[Pod], part: str) -> list[Pod]:
    """Return the pods of one component (controller, webhook, node agent), without those that end or have ended."""
    found = []
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        ours = labels.get(_PART_OF[0]) == _PART_OF[1] and labels.get(COMPONENT) == part
        is_ending = (pod.get("status") or {}).get("phase") in _OVER or "deletionTimestamp" in pod["metadata"]
        if ours and not is_ending:
            found.append(pod)
    return found


def container_of(pod: Pod, part: str) -> Mapping[str, Any] | None:
    """Return the container of the component ``part`` in one of the driver's pods; else None.

    The pod may have other containers, which an administrator or a service mesh adds.
    """
    return next((one for one in pod["spec"]["containers"] if one.get("name") == part), None)


def is_ready(pod: Pod) -> bool:
    """Return whether the kubelet reports a pod of the driver as ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def arguments(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the command-line arguments of the driver's container in a pod, by their flags."""
    words = [str(word).partition("=") for word in container.get("args") or ()]
    return {flag: value for flag, equals, value in words if equals}
