"""The Eviction API: a pod goes unless a disruption budget forbids it, and it is said on the pod that it was evicted.

Source: Kubernetes 1.36, pkg/registry/core/pod/storage/eviction.go. A budget's ``disruptionsAllowed`` is what the test
says; each eviction takes one of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from tests.fakes.apirules import Refused
from tests.fakes.apistore import Key, Object, Store

CONDITION: Final = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
SEVERAL: Final = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


def evict(
    store: Store,
    key: Key,
    preconditions: dict[str, Any],
    *,
    delete: Callable[[Key], object] | None = None,
    dry: bool = False,
) -> None:
    """Evict a pod, or refuse to.

    Args:
        store: The API server's objects.
        key: The pod.
        preconditions: Its uid and version.
        delete: How a pod goes, if not at once.
        dry: Whether it is only asked.
    """
    pod = store.get(store.of(PODS), key)
    for name, wanted in preconditions.items():
        if pod["metadata"][name] != wanted:
            raise Refused(409, "Conflict", f'"{key[1]}": Precondition failed: {name} differs')
    ending = "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") != "Running"
    if not ending:
        budgets = [
            budget
            for budget in store.all(POD_DISRUPTION_BUDGETS)
            if budget["metadata"]["namespace"] == key[0] and _chooses(budget, pod)
        ]
        if len(budgets) > 1:
            raise Refused(500, "", SEVERAL)
        for budget in budgets:
            _take(store, budget, dry=dry)
    if dry:
        return
    store.edit(PODS, key, lambda pod: pod["status"].setdefault("conditions", []).append(dict(CONDITION)))
    if delete is not None:
        delete(key)
    else:
        store.remove(PODS, key)


def _chooses(budget: Object, pod: Object) -> bool:
    labels = pod["metadata"].get("labels", {})
    wanted = budget["spec"]["selector"].get("matchLabels", {})
    return all(labels.get(name) == value for name, value in wanted.items())


def _take(store: Store, budget: Object, *, dry: bool) -> None:
    name, allowed = budget["metadata"]["name"], budget["status"]["disruptionsAllowed"]
    if allowed < 1:
        message = "Cannot evict pod as it would violate the pod's disruption budget."
        causes = [{"reason": "DisruptionBudget", "message": f"The disruption budget {name} needs more pods"}]
        raise Refused(429, "TooManyRequests", message, {"causes": causes})
    key = budget["metadata"]["namespace"], name
    if not dry:
        store.edit(POD_DISRUPTION_BUDGETS, key, lambda one: one["status"].update(disruptionsAllowed=allowed - 1))
