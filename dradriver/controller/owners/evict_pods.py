"""Evicts or deletes pods together, if their disruption budgets allow all of them to end.

The Eviction API alone checks pods one by one. Modules of this folder call this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from dradriver.api.base.objects import Metadata, Part
from dradriver.api.base.pods import LabelSelector, Pod
from dradriver.api.gangs import suspendable_owners
from dradriver.api.vocabulary.messages import shown
from dradriver.cluster.pods.pod_rules import chosen_by
from dradriver.controller.writing.outcome import Outcome, RefusedError, outcome
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS

MOST_NAMED: Final = 3  # budgets that a reason names
MOST_CHARACTERS: Final = 500  # of what an admission policy or a webhook says
_ADMISSION: Final = ("ValidatingAdmissionPolicy", "admission webhook")


class _Spec(Part, frozen=True):
    selector: LabelSelector | None = None


class _Status(Part, frozen=True):
    disruptions_allowed: int = 0


class _Budget(Part, frozen=True):
    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


async def ask_budgets(client: Client, running: Sequence[Pod], *, evicted: Collection[str] = ()) -> None:
    """Raise unless disruption budgets allow ending all these running pods of a namespace together.

    The Eviction API checks pods one by one: some would end before a refusal, which can fail a Job. So each budget must
    allow as many disruptions now as it has pods here.

    Args:
        client: The API server.
        running: The pods.
        evicted: Uids of the pods that the Eviction API will end. It refuses pods that two budgets select.

    Raises:
        RefusedError: A budget does not allow it, or the controller may not read budgets.
        ApiError: The server refuses for another reason than a missing permission.
        Unreachable: No answer.
    """
    namespace = running[0].metadata.namespace
    try:
        budgets, _ = await client.list(POD_DISRUPTION_BUDGETS, namespace=namespace, type=_Budget)
    except ApiError as error:
        if not error.forbidden:
            raise
        raise RefusedError(
            "pods of it run, and the controller may not read PodDisruptionBudgets: grant it list on them"
        ) from None

    # Each budget must allow all of its pods to end.
    budgets_by_pod: dict[str, list[str]] = {}  # names, by the pods' uids
    for budget in budgets:
        name = budget.metadata.name
        selector = chosen_by(budget.spec.selector, frozenset({namespace}))
        if selector is None:
            continue
        selected = [pod for pod in running if selector.has(namespace, pod.metadata.labels)]
        if len(selected) > budget.status.disruptions_allowed:
            raise _refused(
                selected,
                f"PodDisruptionBudget {shown(name)} allows {budget.status.disruptions_allowed} "
                f"disruptions now, and {len(selected)} of its pods run: let it allow as many",
            )
        for pod in selected:
            budgets_by_pod.setdefault(pod.metadata.uid, []).append(name)

    # The Eviction API does not support more than one budget for a pod.
    for pod in running:
        names = budgets_by_pod.get(pod.metadata.uid, [])
        if len(names) > 1 and pod.metadata.uid in evicted:
            raise _refused(
                [pod],
                f"pod {shown(f'{namespace}/{pod.metadata.name}')} has {len(names)} PodDisruptionBudgets "
                f"({', '.join(map(shown, names[:MOST_NAMED]))}), and the Eviction API supports one: let one choose it",
            )


def _refused(pods: Iterable[Pod], why: str) -> RefusedError:
    """Return a refusal that concerns these pods."""
    error = RefusedError(why)
    error.pods = frozenset(pod.metadata.uid for pod in pods)
    return error


async def evict(
    client: Client, pod: Pod, *, as_seen: bool, chart_value: str, refused: str, dry_run: bool = False
) -> bool:
    """Evict a pod if its disruption budget allows it; return whether the pod existed.

    Args:
        client: The API server.
        pod: The pod. Another pod with its name is not evicted.
        as_seen: Whether the pod must not have changed since it was read.
        chart_value: The chart value that grants the permission, for the message.
        refused: The beginning of the message of a refusal.
        dry_run: Whether the server only says whether it would evict the pod.

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
        if dry_run and cannot_be_tried(error):
            return True
        # A budget answers 429 with a Status object. So does the rate limit of the API server, but without one.
        if error.status == 429 and error.api_reason:
            refusal = RefusedError(f"{refused}: {error.message}")
            refusal.retry_after_s = error.retry_after_s
            raise refusal from None
        if error.forbidden:
            raise not_permitted(error, "evict pods", f"set {chart_value} in the chart's values") from None
        if _is_about_the_pod(error):
            raise RefusedError(f"{refused}: {error.message}") from None
        raise
    return True


def cannot_be_tried(error: ApiError) -> bool:
    """Return whether a dry run of an eviction is refused only because a webhook does not support dry runs.

    Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go.
    """
    return error.status == 400 and "does not support dry run" in error.message


def not_permitted(error: ApiError, what: str, advice: str) -> RefusedError:
    """Return the refusal of an eviction that the server answered with 403.

    Args:
        error: The answer. An admission policy or a webhook says itself what it refuses.
        what: What the controller may not do.
        advice: How to grant the right, for an account that does not have it.
    """
    if any(text in error.message for text in _ADMISSION):
        advice = error.message[:MOST_CHARACTERS]
    return RefusedError(f"the controller may not {what}: {advice}")


def _is_about_the_pod(error: ApiError) -> bool:
    """Return whether the server refuses an eviction for this pod alone: a retry is of no use, other pods may end.

    A 504 does not count: the pod may have been evicted all the same.
    """
    concern = outcome(error)
    return concern is Outcome.OBJECT or (concern is Outcome.MOMENT and error.status == 500)


async def delete(client: Client, pods: Sequence[Pod]) -> None:
    """Delete pods of a namespace instead of evicting them; other pods with their names are not deleted.

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
