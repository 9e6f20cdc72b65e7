"""When the agent lets go of the driver."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.node.vendors.nvidia.discovery import driver_release

STATE = "nvidia.com/gpu-driver-upgrade-state"


@pytest.mark.parametrize(
    "state", ["pod-deletion-required", "drain-required", "pod-restart-required", "node-maintenance-required"]
)
def test_the_driver_is_let_go_while_the_gpu_operator_replaces_it(state: str) -> None:
    assert driver_release.reason({STATE: state}) == f"node label {STATE}={state}"


@pytest.mark.parametrize(
    "state", ["", "upgrade-required", "cordon-required", "wait-for-jobs-required", "upgrade-done", "upgrade-failed"]
)
def test_it_is_held_before_and_afterwards(state: str) -> None:
    assert driver_release.reason({STATE: state, "nvidia.com/gpu.deploy.driver": "true"}) is None


@pytest.mark.parametrize("value", ["paused-for-driver-upgrade", "paused-for-mig-change"])
def test_it_is_let_go_with_the_operators_own_clients(value: str) -> None:
    labels = {"nvidia.com/gpu.deploy.dcgm-exporter": value, "nvidia.com/gpu.deploy.driver": "true"}
    assert driver_release.reason(labels) == f"node label nvidia.com/gpu.deploy.dcgm-exporter={value}"


def test_it_is_let_go_where_an_administrator_says_so() -> None:
    assert driver_release.reason({names.DRIVER_LABEL: ""}) == "node label gpu.topology/release-driver="
