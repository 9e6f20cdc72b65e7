"""What ``helm uninstall`` does first, and what it deletes."""

from __future__ import annotations

import click
import pytest

from dradriver.cli.main import main
from tests.fakes.chart import container, objects

pytestmark = pytest.mark.helm

HOOK = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job")


def test_the_hook_lists_pods_and_has_no_other_right() -> None:
    rendered = objects()
    for kind in HOOK:
        annotations = rendered[kind, "gpu-topology-uninstall"]["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-delete"
        deleted = annotations["helm.sh/hook-delete-policy"].split(",")
        assert deleted == ["before-hook-creation", "hook-succeeded", "hook-failed"], "nothing of it stays"
    job = rendered["Job", "gpu-topology-uninstall"]
    assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"
    pod = job["spec"]["template"]["spec"]
    (own,) = pod["containers"]
    assert own["command"] == ["gputopo"]
    assert own["args"][0] in main.list_commands(click.Context(main))
    assert own["args"][1:] == ["--release=gpu-topology/gpu-topology"], "namespace and name of the release"
    rules = rendered["ClusterRole", "gpu-topology-uninstall"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["pods"], ["list"]),
        (["resourceclaims"], ["list"]),
    ]
    assert pod["priorityClassName"] == "system-cluster-critical"


def test_a_value_leaves_the_hook_out() -> None:
    assert not [name for _, name in objects("uninstall.force=true") if name == "gpu-topology-uninstall"]


def test_what_the_controller_creates_has_the_owner_that_the_chart_has() -> None:
    arguments = container("controller")["args"]
    (owner,) = [word.removeprefix("--owner=") for word in arguments if word.startswith("--owner=")]
    assert ("ClusterRole", owner) in objects()
    assert "--keep-usage" not in arguments
    assert "--keep-usage" in container("controller", "uninstall.keepUsage=true")["args"]
