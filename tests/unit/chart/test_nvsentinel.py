"""What the chart makes where pods get NVSentinel's annotation: two options, and nobody but the controller writes it."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from tests.fakes.chart import CHART, VARIANTS, container, objects, run

pytestmark = pytest.mark.helm
SETTINGS = VARIANTS["nvsentinel"]
NOTES, WRITES = (("ValidatingAdmissionPolicy", f"gpu-topology-{name}") for name in ("notes", "pod-writes"))


@pytest.mark.parametrize("part", ["controller", "webhook"])
def test_two_processes_are_told_and_by_default_none(part: str) -> None:
    assert "--nvsentinel" in container(part, *SETTINGS)["args"]
    assert "--nvsentinel" not in container(part)["args"]


def test_its_changes_are_changes_of_notes() -> None:
    def condition(*settings: str) -> str:
        hooks = objects(*settings)["MutatingWebhookConfiguration", "gpu-topology-webhook"]["webhooks"]
        (hook,) = (hook for hook in hooks if hook["name"] == "notes.pods.gpu.topology")
        text: str = next(one["expression"] for one in hook["matchConditions"] if one["name"] == "changes-ours")
        return text

    key = f".?annotations[?'{names.NVSENTINEL_DEVICES}']"
    assert f"object.metadata{key} != oldObject.metadata{key} ||" in condition(*SETTINGS)
    assert names.NVSENTINEL_DEVICES not in condition()


def test_a_status_or_binding_does_not_change_it() -> None:
    validations = objects(*SETTINGS)[NOTES]["spec"]["validations"]
    key = f"[?'{names.NVSENTINEL_DEVICES}']"
    kept = f"variables.annotations{key} == variables.oldAnnotations{key}"
    assert [validation["expression"] for validation in validations].count(kept) == 1
    assert len(objects()[NOTES]["spec"]["validations"]) == 2


def test_the_controller_may_write_it_on_pods_alone() -> None:
    rendered = objects(*SETTINGS)
    with_it = {
        name
        for (kind, name), made in rendered.items()
        if kind == "ValidatingAdmissionPolicy"
        and any(names.NVSENTINEL_DEVICES in one["expression"] for one in made["spec"].get("variables", ()))
    }
    assert with_it == {WRITES[1]}
    assert not any(names.NVSENTINEL_DEVICES in one["expression"] for one in objects()[WRITES]["spec"]["variables"])


def test_it_is_refused_for_gpus_that_another_driver_hands_out() -> None:
    settings = [word for setting in (*SETTINGS, *VARIANTS["addon"]) for word in ("--set", setting)]
    done = run("template", "gpu-topology", str(CHART), "--namespace", "gpu-topology", *settings)
    assert done.returncode != 0
    assert "Set nvsentinel.annotatePods to false" in done.stderr
