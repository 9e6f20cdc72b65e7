"""A pod that does not use a feature does not run its code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import dradriver
from tests.fakes.gpucluster import GpuCluster

PACKAGE: Final = Path(dradriver.__file__).parent
# The modules of each feature; a folder stands for all of its modules.
FEATURES: Final = {
    "caps": ("queue/caps.py",),
    "reservations": (
        "controller/features/reservations.py",
        "controller/placing/reservable.py",
        "queue/reservation_access.py",
        "queue/reservation_rules.py",
        "cluster/gpus/reserved.py",
    ),
    "shares of one namespace": ("cluster/gpus/exclusive_namespaces.py",),
    "NICs": (
        "cluster/nics/",
        "api/vocabulary/nic_requests.py",
        *(f"controller/placing/nic_{name}.py" for name in ("choice", "node", "places", "refusals")),
    ),
    "NVLink channels": ("cluster/pods/nvlink_channels.py", "api/claims/compute_domains.py"),
    "idle pods": (
        *(f"controller/features/idle_{name}.py" for name in ("pods", "step", "workloads")),
        "api/claims/idleness.py",
    ),
    "usage": ("controller/writing/usage_store.py",),
    "maintenance": ("api/base/node_maintenance.py",),
    "preemption": ("controller/placing/preemption_plan.py", "api/claims/preemption_note.py"),
    "gangs": ("controller/placing/gang_plan.py", "controller/steps/gang_step.py", "cluster/pods/kept_places.py"),
}


@contextmanager
def entered() -> Iterator[set[str]]:
    """Yield the files of the driver whose functions are called meanwhile, relative to its folder."""
    files = set[str]()
    prefix = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            files.add(frame.f_code.co_filename.removeprefix(prefix))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)


def of_feature(files: set[str], feature: str) -> list[str]:
    """Return those of some files that belong to a feature."""
    return sorted(file for file in files if file.startswith(FEATURES[feature]))


def test_each_feature_names_modules_that_exist() -> None:
    for names in FEATURES.values():
        assert all((PACKAGE / name).exists() for name in names)


@pytest.mark.looptime
@pytest.mark.parametrize("feature", FEATURES)
async def test_a_plain_pod_enters_no_module_of_a_feature(feature: str) -> None:
    cluster = GpuCluster()
    for node in "ab":
        cluster.node(node)
    cluster.pod("before", 2)  # the tables of the machines are made for it
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.pod("plain", 4)
    with entered() as files:
        cluster.deliver()
        await cluster.worker.rest()
        cluster.schedule()
        cluster.deliver()
        await cluster.worker.rest()
    assert cluster.gpus("plain")
    assert "controller/placing/decide.py" in files
    assert of_feature(files, feature) == []
