from __future__ import annotations

import pytest

from dradriver.topology import profiles
from dradriver.topology.gpu_distances import Step, step, step_gbps, topology_level
from dradriver.topology.machine import PathType


def test_steps_within_a_server_are_numbered_as_paths_are() -> None:
    assert [Step(path).name for path in PathType][1:] == [path.name for path in PathType][1:]


def test_every_step_has_a_level_and_farther_is_never_a_lower_one() -> None:
    levels = [topology_level(step) for step in Step]
    assert levels == sorted(levels)
    assert set(levels) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("name", "pair", "expected", "gbps"),
    [
        ("dgx1-v100", (0, 3), Step.NVLINK, 40.0),
        ("dgx1-v100", (0, 1), Step.NVLINK, 20.0),
        ("dgx1-v100", (0, 5), Step.SYS, 6.0),
        ("dgx-h100", (0, 7), Step.NVLINK, 370.8),
        ("rtx4090-x8", (0, 1), Step.PIX, 24.0),
        ("rtx4090-x8", (0, 4), Step.SYS, 10.0),
        ("a100-pcie-x8-bridge-pairs", (0, 2), Step.NODE, 24.0),
        ("hgx-h100-degraded", (0, 5), Step.SYS, 22.0),
        ("l40s-x8", (0, 7), Step.SYS, 22.0),
    ],
)
def test_the_way_between_two_gpus(name: str, pair: tuple[int, int], expected: Step, gbps: float) -> None:
    machine = profiles.load(name)
    for i, j in (pair, pair[::-1]):
        assert step(machine, i, j) is expected
        assert step_gbps(machine, i, j) == gbps
