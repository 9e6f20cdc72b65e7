"""Sets that a machine's symmetries turn into each other, against all permutations."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from dradriver.allocator.sets import busbw, symmetries
from dradriver.allocator.sets.facts import Facts
from dradriver.allocator.sets.shape import Shape, shape_of
from dradriver.topology.machine import Machine, PathType
from tests.effort import sampled
from tests.fakes import machines


def some(number: int) -> Machine:
    """A small machine with some links at random."""
    rng = random.Random(number)
    count = rng.randint(2, 5)
    links = {(a, b): rng.choice((0, 1, 1, 2)) for b in range(count) for a in range(b)}
    halves = [rng.randint(0, 1) for _ in range(count)]
    return machines.build("some", paths=machines.nested((halves,), (PathType.PIX,), across=PathType.SYS), links=links)


def orbits(shape: Shape) -> list[set[int]]:
    """For each set all that some permutation of the GPUs turns it into that leaves the machine as it is."""
    gpus = range(shape.size)
    same = [
        order
        for order in itertools.permutations(gpus)
        if all(
            shape.links[a][b] == shape.links[order[a]][order[b]]
            and shape.paths[a][b] == shape.paths[order[a]][order[b]]
            for a in gpus
            for b in gpus
        )
    ]
    return [
        {sum(1 << order[gpu] for gpu in gpus if mask >> gpu & 1) for order in same} for mask in range(1 << shape.size)
    ]


@pytest.mark.parametrize("number", sampled(range(30)))
def test_sets_are_alike_that_a_symmetry_turns_into_each_other(number: int) -> None:
    shape = shape_of(some(number))
    first = symmetries.representative_masks(shape)
    for mask, orbit in enumerate(orbits(shape)):
        assert {int(first[other]) for other in orbit} == {int(first[mask])}
        assert int(first[mask]) in orbit


def circle(count: int) -> Machine:
    """GPUs that are linked to one after the other."""
    links = {(gpu, gpu + 1): 1 for gpu in range(count - 1)} | {(0, count - 1): 1}
    return machines.build(
        "circle", paths=machines.nested(([0] * count,), (PathType.PHB,), across=PathType.SYS), links=links
    )


@pytest.mark.parametrize(
    ("machine", "kinds"),
    [
        (machines.direct_mesh(16), 17),
        (machines.bridge_pairs(16), 120),
        (machines.pcie_box(), 15),
        (machines.dgx1(), 76),
        (circle(12), 224),  # bracelets of twelve beads in two colours
    ],
)
def test_few_sets_of_a_regular_machine_are_left_in_any_numbering(machine: Machine, kinds: int) -> None:
    rng = random.Random(4)
    for _ in range(3):
        turned = shape_of(machine).renumbered(rng.sample(range(len(machine.gpus)), len(machine.gpus)))
        assert len(set(symmetries.representative_masks(turned).tolist())) == kinds


def across() -> Machine:
    """Pairs bridged from one socket to the other, none below a switch: gateways."""
    return machines.build(
        "across",
        paths=machines.nested((machines.HALVES,), (PathType.PHB,), across=PathType.SYS),
        links={(gpu, gpu + 4): 4 for gpu in range(4)},
    )


def one_other(machine: Machine, **own: Any) -> Shape:
    """The machine with one GPU that is not as its twin."""
    first, *others = machine.gpus
    return shape_of(msgspec.structs.replace(machine, gpus=(msgspec.structs.replace(first, **own), *others)))


@pytest.mark.parametrize(
    "shape",
    [
        *map(shape_of, (machines.dgx1(), machines.bridge_pairs(), machines.pcie_box(), some(3))),
        one_other(machines.pcie_box(), pcie_gbps=6.0),
        one_other(machines.dgx_h100(), switch_links=9),
        msgspec.structs.replace(shape_of(across()), direct=(False, *[True] * 7)),
    ],
)
def test_alike_sets_are_worth_the_same_when_all_are_computed(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Facts(shape).busbw
    monkeypatch.setattr(busbw, "representative_masks", lambda shape: np.arange(1 << shape.size))
    for one, two in zip(shared, Facts(shape).busbw, strict=True):
        assert np.array_equal(one, two)
