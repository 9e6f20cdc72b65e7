"""Evicts or deletes pods together, if their disruption budgets allow all of them to end.

The Eviction API alone checks pods one by one. The other modules of this folder call this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dradriver.api.base.pods import Pod
from dradriver.api.gangs import suspendable_owners
from dradriver.controller.owners.disruption_budgets import ask_budgets
from dradriver.controller.writing.write_outcome import Outcome, RefusedError, outcome
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import PODS

MOST_CHARACTERS: Final = 500  # of what an admission policy or a webhook says
_ADMISSION: Final = ("ValidatingAdmissionPolicy", "admission webhook")


async def evict(
    client: Client, pod: Pod, *, as_seen: bool, chart_value: str, refused: str, dry_run: bool = False
) -> bool:
    """Evict a pod if its disruption budget allows it; return whether the pod existed.

    Args:
        client: The API server.
        pod: The pod. A new pod with the same name is not evicted.
        as_seen: Whether the eviction fails if the pod has changed since it was read.
        chart_value: The chart value that grants the permission, for the error message.
        refused: The beginning of the message if the eviction is refused.
        dry_run: Whether the server only checks the eviction, and the pod stays.

    Raises:
        RefusedError: A budget forbids it, the controller has no permission, or the server refuses it for this pod.
        ApiError: The server is in trouble; ``conflict`` if the pod was replaced or has changed.
        Unreachable: No answer.
    """
    metadata = pod.metadata
    preconditions = {"uid": metadata.uid}
    if as_seen:
        preconditions["resourceVersion"] = metadata.resource_version
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace},
        "deleteOptions": {"preconditions": preconditions},
    }
    try:
        await client.create(PODS, body, namespace=metadata.namespace, subresource="eviction", dry_run=dry_run)
    except ApiError as error:
        if error.not_found:
            return False
        # A webhook does not support dry runs. Only the real eviction can tell, so this one counts as a success.
        if dry_run and cannot_be_tried(error):
            return True
        # A budget answers 429 with a Status object. So does the rate limit of the API server, but without one.
        if error.status == 429 and error.api_reason:
            refusal = RefusedError(f"{refused}: {error.message}")
            refusal.retry_after_s = error.retry_after_s
            raise refusal from None
        if error.forbidden:
            raise not_permitted(error, "evict pods", f"set {chart_value} in the chart's values") from None
        # Trouble of the server and conflicts are raised as they are: the caller tries again.
        if _is_about_the_pod(error):
            raise RefusedError(f"{refused}: {error.message}") from None
        raise
    return True


def cannot_be_tried(error: ApiError) -> bool:
    """Return whether a dry run failed only because a webhook does not support dry runs.

    Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go.
    """
    return error.status == 400 and "does not support dry run" in error.message


def not_permitted(error: ApiError, what: str, advice: str) -> RefusedError:
    """Return the error for a request that the server answered with 403.

    Args:
        error: The answer. If an admission policy or a webhook refused, its text replaces ``advice``.
        what: What the controller may not do, for example ``evict pods``.
        advice: How to grant the permission.
    """
    if any(text in error.message for text in _ADMISSION):
        advice = error.message[:MOST_CHARACTERS]
    return RefusedError(f"The controller cannot {what}: {advice}")


def _is_about_the_pod(error: ApiError) -> bool:
    """Return whether the server refuses the eviction of this pod only.

    Then a retry does not help, but other pods can be evicted. An error 504 does not count: the pod may have been
    evicted nevertheless.
    """
    concern = outcome(error)
    return concern is Outcome.OBJECT or (concern is Outcome.MOMENT and error.status == 500)


async def delete(client: Client, pods: Sequence[Pod]) -> None:
    """Delete pods of a namespace instead of evicting them, if disruption budgets allow it.

    New pods with the same names are not deleted.

    Raises:
        RefusedError: The controller has no permission, or a budget forbids it.
        ApiError: The server refuses for another reason.
        Unreachable: No answer.
    """
    if running := [pod for pod in pods if pod.spec.node_name and not pod.finished]:
        await ask_budgets(client, running)
    for pod in pods:
        metadata = pod.metadata
        try:
            await client.delete(PODS, metadata.name, namespace=metadata.namespace, uid=metadata.uid)
        except ApiError as error:
            if error.forbidden:
                right = suspendable_owners.grant(suspendable_owners.DELETES, "suspend")
                raise not_permitted(error, "delete its pods", f"{right}, or delete them") from None
            # A conflict means that another pod has the name: the one to delete is gone.
            if not error.conflict:
                raise
