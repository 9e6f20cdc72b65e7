"""NVSentinel's annotation is the controller's on pods of this driver, if the administrator wants it to be written."""

from __future__ import annotations

import copy

import pytest

from dradriver.api.base import names
from tests.fakes.admission import CONTROLLER, Object, admit, defaulted, lifted, pod, stored

NOTE = '{"devices":{"nvidia.com/gpu":["GPU-0","GPU-1"]}}'
FORGED = '{"devices":{"nvidia.com/gpu":["GPU-9"]}}'
MANIFEST = pod(2, annotations={names.POLICY: "nvlink"})


def noted(live: Object, note: str | None) -> Object:
    made = copy.deepcopy(live)
    made["metadata"].setdefault("annotations", {}).pop(names.NVSENTINEL_DEVICES, None)
    if note is not None:
        made["metadata"]["annotations"][names.NVSENTINEL_DEVICES] = note
    return made


@pytest.fixture
def live() -> Object:
    return noted(lifted(stored(admit(defaulted(MANIFEST)).admitted)), NOTE)


@pytest.mark.parametrize("sent", [FORGED, None])
def test_no_other_account_changes_or_removes_it(live: Object, sent: str | None) -> None:
    verdict = admit(noted(live, sent), old=live, keeps_nvsentinel=True)
    assert verdict.admitted == live
    assert verdict.allowed, "NVSentinel's collector removes it from pods whose GPUs it does not find; that is no error"


def test_no_other_account_adds_it(live: Object) -> None:
    without = noted(live, None)
    assert admit(live, old=without, keeps_nvsentinel=True).admitted == without


def test_the_controller_writes_it(live: Object) -> None:
    without = noted(live, None)
    assert admit(live, old=without, user=CONTROLLER, keeps_nvsentinel=True).admitted == live


def test_a_new_pod_does_not_bring_it() -> None:
    made = admit(defaulted(noted(MANIFEST, FORGED)), keeps_nvsentinel=True).admitted
    assert names.NVSENTINEL_DEVICES not in made["metadata"]["annotations"]
    by_limits = noted(pod(2), FORGED)
    made = admit(defaulted(by_limits), path="/translate-pods", keeps_nvsentinel=True).admitted
    assert names.NVSENTINEL_DEVICES not in made["metadata"]["annotations"]


def test_it_does_not_make_a_pod_ours() -> None:
    assert admit(noted(pod(), FORGED), keeps_nvsentinel=True).patch == []


def test_without_the_option_it_is_anybodys(live: Object) -> None:
    assert admit(noted(live, FORGED), old=live).patch == []
