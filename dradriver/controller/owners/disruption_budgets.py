"""Asks PodDisruptionBudgets whether some pods may all end now, and which other pods of the namespace may not.

The Eviction API checks pods one by one. ``evictions`` calls this module before it ends pods. The modules that suspend
owners, delete pods or end idle pods call it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dradriver.api.base.objects import Metadata, Part
from dradriver.api.base.pods import LabelSelector, Pod
from dradriver.api.vocabulary.messages import shown
from dradriver.cluster.pods.pod_rules import Chosen, chosen_by
from dradriver.controller.writing.write_outcome import RefusedError
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS

MOST_NAMED: Final = 3  # budgets that a reason names
MOST_MATCHES: Final = (
    20_000  # pods that are held against selectors for one refusal: budgets are their authors' to write
)


class _Spec(Part, frozen=True):
    selector: LabelSelector | None = None


class _Status(Part, frozen=True):
    disruptions_allowed: int = 0


class _Budget(Part, frozen=True):
    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


async def ask_budgets(
    client: Client,
    running: Sequence[Pod],
    *,
    is_evicted: Callable[[Pod], bool] = lambda _: False,
    others: Iterable[Pod] = (),
) -> None:
    """Raise unless disruption budgets allow all these running pods to end together.

    The Eviction API checks pods one by one. So it could end some pods before it refuses one, which can fail a Job. This
    function requires that each budget allows as many disruptions now as it selects pods of ``running``.

    Args:
        client: The API server.
        running: The pods that must end, all in one namespace.
        is_evicted: Returns whether a pod is ended by the Eviction API, and not by suspending its Job or another owner.
            Only the Eviction API refuses a pod that two budgets select.
        others: Other pods of the namespace, read only if a budget refuses. The error also names those of them that
            budgets keep from ending now.

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
            "Pods of the gang run, and the controller has no right to read PodDisruptionBudgets. Grant it list."
        ) from None
    # By budget: its selector, without budgets that select no pod, and the pods here that it selects.
    selectors = {
        budget.metadata.name: (budget, selector)
        for budget in budgets
        if (selector := chosen_by(budget.spec.selector, frozenset({namespace}))) is not None
    }
    selected = {
        name: [pod for pod in running if selector.has(namespace, pod.metadata.labels)]
        for name, (_, selector) in selectors.items()
    }
    if why := _obstacle(running, {name: budget for name, (budget, _) in selectors.items()}, selected, is_evicted):
        refusal = RefusedError(why)
        refusal.pods = _kept(selectors, selected, is_evicted, others)
        raise refusal


def _obstacle(
    running: Sequence[Pod],
    budgets: Mapping[str, _Budget],
    selected: Mapping[str, Sequence[Pod]],
    is_evicted: Callable[[Pod], bool],
) -> str:
    """Return why budgets do not let these pods end together; empty if they do.

    ``selected`` has, by the name of a budget, the pods that it selects. ``running`` are the pods that must end.
    ``is_evicted`` returns whether a pod is ended by the Eviction API, and not by suspending its Job or another owner.
    Only the Eviction API refuses a pod that two budgets select.
    """
    # Each budget must allow all of its pods to end.
    for name, budget in budgets.items():
        if len(selected[name]) > budget.status.disruptions_allowed:
            return (
                f"PodDisruptionBudget {shown(name)} allows {budget.status.disruptions_allowed} "
                f"disruptions now, but {len(selected[name])} of its pods run. Let it allow as many."
            )

    # The Eviction API does not support more than one budget for a pod.
    names_of: dict[str, list[str]] = {}
    for name, pods in selected.items():
        for pod in pods:
            names_of.setdefault(pod.metadata.uid, []).append(name)
    for pod in running:
        names = names_of.get(pod.metadata.uid, [])
        if len(names) > 1 and is_evicted(pod):
            return (
                f"Pod {shown(f'{pod.metadata.namespace}/{pod.metadata.name}')} has {len(names)} PodDisruptionBudgets "
                f"({', '.join(map(shown, names[:MOST_NAMED]))}), but the "
                "Eviction API supports only one. Let only one select it."
            )
    return ""


def _kept(
    selectors: Mapping[str, tuple[_Budget, Chosen]],
    selected: Mapping[str, Sequence[Pod]],
    is_evicted: Callable[[Pod], bool],
    others: Iterable[Pod],
) -> frozenset[str]:
    """Return the uids of the pods of a namespace that budgets keep from ending now.

    The pods of this preemption plan and all other pods of the namespace are checked. So the next plan does not fail
    because it names another pod of the same budget.

    If a budget allows some disruptions, but fewer than the plan needs, the result leaves out as many of its pods as it
    allows. The next plan may end these pods.

    Args:
        selectors: The budgets and their selectors, by name.
        selected: The pods of the plan that each budget selects, by the budget's name.
        is_evicted: Returns whether a pod is ended by the Eviction API, and not by suspending its Job or another owner.
            Only the Eviction API refuses a pod that two budgets select.
        others: The other pods of the namespace.
    """
    by_label: dict[tuple[str, str], list[Pod]] = {}
    all_others = list(others)
    for pod in all_others:
        for label in pod.metadata.labels.items():
            by_label.setdefault(label, []).append(pod)

    kept = set[str]()
    chosen_by_one, chosen_by_several = set[str](), set[str]()
    matches_left = MOST_MATCHES
    # The budgets that select pods of the plan come first, before ``matches_left`` is used up.
    for name, (budget, selector) in sorted(selectors.items(), key=lambda item: not selected[item[0]]):
        # 1. The pods of the budget: other pods before those of the plan. A label that its selector requires leaves few
        #    other pods to match. A selector without such a label is matched with all of them.
        match_labels = {} if budget.spec.selector is None else budget.spec.selector.match_labels
        required_label = min(match_labels.items(), default=None)
        candidates = all_others if required_label is None else by_label.get(required_label, [])
        matches_left -= len(candidates) + 1
        if matches_left < 0:
            candidates = []
        pods = [pod for pod in candidates if selector.has(pod.metadata.namespace, pod.metadata.labels)]
        pods += selected[name]
        # 2. Pods of two budgets.
        uids = {pod.metadata.uid for pod in pods if is_evicted(pod)}
        chosen_by_several |= uids & chosen_by_one
        chosen_by_one |= uids
        # 3. A budget that refuses keeps all of its pods, except as many as it allows to end.
        allowed = max(budget.status.disruptions_allowed, 0)
        if not allowed or len(selected[name]) > allowed:
            kept |= {pod.metadata.uid for pod in pods[allowed:]}
    return frozenset(kept | chosen_by_several)
