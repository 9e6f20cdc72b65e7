"""What Helm says once the chart is installed."""

from __future__ import annotations

import pytest

from tests.fakes.chart import CHART, SIMULATED, run

pytestmark = pytest.mark.helm


def notes(*settings: str) -> str:
    done = run(
        *("install", "gpu-topology", str(CHART), "--namespace", "gpus", "--dry-run=client"),
        *(word for setting in settings for word in ("--set", setting)),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


def test_notes_name_the_image_the_delay_of_policies_the_page_and_the_next_commands() -> None:
    told = notes("image.repository=example.com/gpu", "image.tag=v7")
    for text in (
        *("Its image is example.com/gpu:v7.", "within about 75 s", "gputopo serve"),
        *("helm test gpu-topology --namespace gpus", "gpu.topology/policy: nvlink", "gputopo explain POD"),
        *("nvidia.com/gpu.present=true", "helm uninstall gpu-topology --namespace gpus"),
    ):
        assert text in told
    assert "WARNING" not in told


def test_notes_say_what_the_values_change() -> None:
    told = notes(
        *SIMULATED, "page.enabled=true", "page.port=9", "webhook.translate=none", "allocatingDriver=gpu.amd.com"
    )
    assert "port-forward deploy/gpu-topology-page 9\n" in told
    assert "gpu.amd.com allocates the GPUs" in told
    assert "gpu.present" not in told
    assert "gpu.topology/translate" not in told


def test_notes_say_how_to_see_whether_policies_are_in_force() -> None:
    text = "See whether these are in force:\n\n    gputopo verify\n"
    assert text in notes("policies.weights.nvlink=1")
    assert text not in notes()


def test_notes_say_what_an_uninstallation_does() -> None:
    told = notes()
    assert "It stops if pods have GPUs of the driver or wait for some: gputopo uninstall lists these pods." in told
    assert "    helm rollback gpu-topology REVISION --namespace gpus\n" in told
    assert "--no-hooks uninstalls although pods need the driver." in told
    assert "uninstall.force=true.\nGPU time" in told
    assert "GPU time (gputopo usage) is deleted" in told
    told = notes("uninstall.force=true", "uninstall.keepUsage=true")
    assert "It does not look for pods that need the driver" in told
    assert "GPU time stays in the namespace" in told
