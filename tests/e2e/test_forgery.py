"""Claims with the controller's mark are its own: whoever else may write claims can neither make nor change one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.pod import claim_alternatives
from tests.e2e.kubectl import Namespace, pod

UNMARKED: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "decoy"},
    "spec": {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]}},
}
LABEL = {"labels": {names.LABEL: names.LABEL_PLACED}}
CHOICE = {"annotations": {names.CHOICE: "{}"}}


@pytest.fixture
def editor(namespace: Namespace) -> str:
    """What makes kubectl act for an account that may edit everything in the namespace."""
    namespace.kubectl("create", "serviceaccount", "editor")
    namespace.kubectl(
        "create", "rolebinding", "editor", "--clusterrole=edit", f"--serviceaccount={namespace.name}:editor"
    )
    return f"--as=system:serviceaccount:{namespace.name}:editor"


@pytest.mark.parametrize("mark", [LABEL, CHOICE, {"labels": {names.LABEL: "other"}}], ids=["label", "choice", "other"])
def test_no_other_account_creates_a_marked_claim(namespace: Namespace, editor: str, mark: dict[str, Any]) -> None:
    forged = UNMARKED | {"metadata": UNMARKED["metadata"] | mark}
    for account in ([editor], []):  # not even the cluster's admin
        made = namespace.kubectl(*account, "create", "-f", "-", stdin=json.dumps(forged), check=False)
        assert made.returncode
        assert "Forbidden" in made.stderr
        assert "Only the controller of gpu.topology creates claims" in made.stderr

    namespace.kubectl(editor, "create", "-f", "-", stdin=json.dumps(UNMARKED))
    marked = namespace.kubectl(
        *(editor, "patch", "resourceclaim", "decoy", "--type=merge", "-p", json.dumps({"metadata": mark})), check=False
    )
    assert "Forbidden" in marked.stderr


def test_no_other_account_changes_a_marked_claim(namespace: Namespace, editor: str) -> None:
    # That the pod runs shows that controller, scheduler and claim controller can do their work.
    namespace.apply(pod("true", gpus=2, words={names.POLICY: "nvlink"}))
    namespace.wait_running("true")
    claim = namespace.get("pod", "true")["spec"]["resourceClaims"][0]["resourceClaimName"]
    before = namespace.get("resourceclaim", claim)["metadata"]
    changes: list[dict[str, Any]] = [
        {"labels": {names.LABEL: None}},
        {"labels": {names.LABEL: "other"}},
        {"annotations": {names.CHOICE: None}},
        {"annotations": {names.CHOICE: "{}"}},
        {"annotations": {names.SET: "{}"}},
        {"annotations": {names.HANDED_OVER: "x"}},
        {"labels": None, "annotations": None},
        {"ownerReferences": None},
        {"ownerReferences": [before["ownerReferences"][0] | {"name": "another"}]},
    ]
    for change in changes:
        body = json.dumps({"metadata": change})
        done = namespace.kubectl(editor, "patch", "resourceclaim", claim, "--type=merge", "-p", body, check=False)
        assert "Forbidden" in done.stderr, change
        # By way of the status, metadata does not change at all.
        namespace.kubectl("patch", "resourceclaim", claim, "--subresource=status", "--type=merge", "-p", body)

    after = namespace.get("resourceclaim", claim)["metadata"]
    for key in ("labels", "annotations", "ownerReferences"):
        assert after[key] == before[key]
    namespace.kubectl(editor, "label", "resourceclaim", claim, "mine=yes")


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "copy", "labels": {names.LABEL: names.LABEL_STATIC}},
        {"name": claim_alternatives.template_name("a note")},
    ],
    ids=["label", "name"],
)
def test_no_other_account_makes_a_template_of_pods_without_a_choice(
    namespace: Namespace, editor: str, metadata: dict[str, Any]
) -> None:
    plain = UNMARKED | {"kind": "ResourceClaimTemplate", "spec": {"spec": UNMARKED["spec"]}}
    forged = json.dumps(plain | {"metadata": metadata})
    made = namespace.kubectl(editor, "create", "-f", "-", stdin=forged, check=False)
    assert "Forbidden" in made.stderr
    assert "Only the controller of gpu.topology creates templates" in made.stderr

    namespace.kubectl(editor, "create", "-f", "-", stdin=json.dumps(plain))
    marked = namespace.kubectl(
        editor, "label", "resourceclaimtemplate", "decoy", f"{names.LABEL}={names.LABEL_STATIC}", check=False
    )
    assert "Forbidden" in marked.stderr


def test_a_pod_can_leave_its_claim_behind(namespace: Namespace) -> None:
    """The garbage collector takes the owner away when a pod is deleted so."""
    namespace.apply(pod("gone", gpus=2, words={names.POLICY: "nvlink"}))
    namespace.wait_running("gone")
    claim = namespace.get("pod", "gone")["spec"]["resourceClaims"][0]["resourceClaimName"]
    namespace.kubectl("delete", "pod", "gone", "--cascade=orphan", "--timeout=90s")

    found = namespace.kubectl("get", "resourceclaim", claim, "-o", "json", "--ignore-not-found").stdout
    assert not found or not json.loads(found)["metadata"].get("ownerReferences")
