"""Evicts or deletes pods together, if their disruption budgets allow it: the API server checks evictions alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from dradriver.api.base.objects import Metadata, Part
from dradriver.api.base.pods import LabelSelector, Pod
from dradriver.api.gangs import suspendable_owners
from dradriver.api.vocabulary.messages import shown
from dradriver.cluster.pods.anti_affinity import chosen_by
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

    The Eviction API would ask for one pod after the other, and fail a Job. So all must be within what each budget
    allows just now; who may not read budgets cannot know that.

    Args:
        client: The API server.
        running: The pods.
        evicted: Uids of those that the Eviction API is to end, which ends no pod that two budgets choose.

    Raises:
        RefusedError: They may not, or nobody can tell.
        ApiError: The server refuses, other than for want of the right.
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
    chosen: dict[str, list[str]] = {}  # names of budgets, by uids of pods
    for budget in budgets:
        name, pods = budget.metadata.name, chosen_by(budget.spec.selector, frozenset({namespace}))
        own = [] if pods is None else [pod for pod in running if pods.has(namespace, pod.metadata.labels)]
        if len(own) > budget.status.disruptions_allowed:
            raise _refused(
                own,
                f"PodDisruptionBudget {shown(name)} allows {budget.status.disruptions_allowed} "
                f"disruptions now, and {len(own)} of its pods run: let it allow as many",
            )
        for pod in own:
            chosen.setdefault(pod.metadata.uid, []).append(name)
    for pod in running:
        names = chosen.get(pod.metadata.uid, [])
        if len(names) > 1 and pod.metadata.uid in evicted:
            raise _refused(
                [pod],
                f"pod {shown(f'{namespace}/{pod.metadata.name}')} has {len(names)} PodDisruptionBudgets "
                f"({', '.join(map(shown, names[:MOST_NAMED]))}), and the Eviction API supports one: let one choose it",
            )


def _refused(pods: Iterable[Pod], why: str) -> RefusedError:
    error = RefusedError(why)
    error.pods = frozenset(pod.metadata.uid for pod in pods)
    return error


async def evict(
    client: Client, pod: Pod, *, as_seen: bool, chart_value: str, refused: str, dry_run: bool = False
) -> bool:
    """Evict a pod as far as its disruption budgets allow it. Returns whether it existed.

    Args:
        client: The API server.
        pod: The very pod that is meant.
        as_seen: Whether it must not have changed since either.
        chart_value: What gives the right.
        refused: What a refusal begins with.
        dry_run: Whether the server only says whether it would end the pod.

    Raises:
        RefusedError: A budget forbids it, the controller may not, or it is refused for what this pod is.
        ApiError: The server is in trouble; ``conflict`` where it is another pod by now, or has changed.
        Unreachable: No answer.
    """
    metadata = pod.metadata
    seen = {"uid": metadata.uid} | ({"resourceVersion": metadata.resource_version} if as_seen else {})
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace},
        "deleteOptions": {"preconditions": seen},
    }
    try:
        await client.create(PODS, body, namespace=metadata.namespace, subresource="eviction", dry_run=dry_run)
    except ApiError as error:
        if error.not_found:
            return False
        if dry_run and cannot_be_tried(error):
            return True
        if error.status == 429 and error.api_reason:  # who limits requests sends no Status
            no = RefusedError(f"{refused}: {error.message}")
            no.retry_after_s = error.retry_after_s
            raise no from None
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
    """Return whether an eviction is refused for this pod alone: asking again helps nobody, and other pods may end.

    A 504 may have ended the pod all the same.
    """
    concern = outcome(error)
    return concern is Outcome.OBJECT or (concern is Outcome.MOMENT and error.status == 500)


async def delete(client: Client, pods: Sequence[Pod]) -> None:
    """Delete pods of a namespace instead of evicting them, each only if it is still the one that is meant.

    Raises:
        RefusedError: The controller may not, or a budget forbids it.
        ApiError: The server refuses, other than for want of the right.
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
            if not error.conflict:  # another pod of that name: the one that was meant is gone
                raise
