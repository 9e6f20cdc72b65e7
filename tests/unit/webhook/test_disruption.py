"""A Job whose gang is larger than what may fail of it: its author is warned where its pods may have to end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Preemption, Queue, Tenant
from webhook.disruption import warnings

ON = Policies(
    queue=Queue(preemption=Preemption(enabled=True, unpreemptable_classes=("serving",), unpreemptable_tenants=("t",))),
    tenants={"t": Tenant(namespaces=("kept",))},
)
GANG = {names.GANG: "auto"}
IGNORE = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}


def told(
    spec: object, words: dict[str, str] = GANG, kind: str = "Job", space: str = "a", by: Policies = ON
) -> list[str]:
    return warnings(kind, Annotations(words, by), msgspec.Raw(msgspec.json.encode(spec)), space)


def test_more_pods_than_may_fail() -> None:
    (text,) = told({"parallelism": 8})
    assert "8 pods run at once" in text
    assert "backoffLimit 6" in text
    assert told({"parallelism": 2, "backoffLimit": 1, "podFailurePolicy": None})


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"parallelism": 6}},
        {"spec": {"parallelism": 8, "backoffLimit": 8}},
        {"spec": {"parallelism": 8, "podFailurePolicy": IGNORE}},
        {"spec": {"parallelism": 8, "template": {"spec": {"priorityClassName": "serving"}}}},
        {"spec": {"parallelism": 8}, "words": {}},
        {"spec": {"parallelism": 8}, "kind": "JobSet"},
        {"spec": {"parallelism": 8}, "space": "kept"},
        {"spec": {"parallelism": 8}, "by": Policies()},
        {"spec": [1]},
        {"spec": {"parallelism": "many"}},
        {"spec": None},
    ],
)
def test_nothing_to_warn_of(changes: dict[str, Any]) -> None:
    assert told(**changes) == []


def test_a_policy_of_other_conditions_does_not_help() -> None:
    rule = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert told({"parallelism": 8, "podFailurePolicy": {"rules": [rule, {"action": "Ignore"}]}})
