from __future__ import annotations

import pytest

from dradriver.topology import profiles
from dradriver.topology.gpu_distances import Step, location, step, step_gbps, topology_level
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


def test_a_part_of_the_network_counts_within_those_around_it() -> None:
    here = location(fabric="f.1", leaf="l1", spine="s1", zone="z1")
    assert here.domains == (("f.1",), ("z1", "s1", "l1"), ("z1", "s1"), ("z1",))
    for there, same in (
        (location(fabric="f.1", leaf="l9", spine="s9", zone="z2"), [True, False, False, False]),
        (location(leaf="l1", spine="s2", zone="z1"), [False, False, False, True]),
        (location(leaf="l1", spine="s1", zone="z2"), [False] * 4),
    ):
        assert [a == b for a, b in zip(here.domains, there.domains, strict=True)] == same


def test_what_is_not_known_is_no_part_of_the_network() -> None:
    assert location().domains == (None,) * 4
    assert location(leaf="l1").domains == (None, ("", "", "l1"), None, None)
