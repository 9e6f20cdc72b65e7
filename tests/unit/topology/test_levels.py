from __future__ import annotations

import pytest

from dradriver.topology import profiles
from dradriver.topology.levels import (
    Location,
    Step,
    between,
    step,
    step_gbps,
    topology_level,
)
from dradriver.topology.machine import PathType


def test_steps_within_a_server_are_numbered_as_paths_are() -> None:
    assert [Step(path).name for path in PathType][1:] == [path.name for path in PathType][1:]


def test_every_step_has_a_level_and_farther_is_never_a_lower_one() -> None:
    levels = [topology_level(step) for step in Step]
    assert levels == sorted(levels)
    assert set(levels) == {0, 1, 2, 3, 4}


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


HERE = Location(fabric="f.1", leaf="l1", spine="s1", zone="z1")


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (HERE, Step.FABRIC),
        (Location(fabric="f.1", leaf="l9", spine="s9", zone="z2"), Step.FABRIC),
        (Location(fabric="f.2", leaf="l1", spine="s1", zone="z1"), Step.LEAF),
        (Location(leaf="l2", spine="s1", zone="z1"), Step.SPINE),
        (Location(leaf="l2", spine="s2", zone="z1"), Step.ZONE),
        (Location(leaf="l9", spine="s9", zone="z2"), Step.APART),
        (Location(), Step.APART),
        # a rack of the same name below another spine, a spine of the same name in another zone
        (Location(leaf="l1", spine="s2", zone="z1"), Step.ZONE),
        (Location(leaf="l1", spine="s1", zone="z2"), Step.APART),
        (Location(leaf="l1"), Step.APART),
    ],
)
def test_the_way_between_two_servers(there: Location, expected: Step) -> None:
    assert between(HERE, there) is between(there, HERE) is expected
    assert topology_level(between(HERE, there)) == 4


def test_what_is_not_known_is_not_shared() -> None:
    assert between(Location(), Location()) is Step.APART


def test_a_leaf_is_shared_where_nothing_is_known_above_it() -> None:
    assert between(Location(leaf="l1"), Location(leaf="l1")) is Step.LEAF
