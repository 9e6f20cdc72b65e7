"""What holds for every machine: random link graphs, path matrices and switches."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.request import Constraint, Level, NoPlaceError, Whole
from dradriver.allocator.sets.busbw import split
from dradriver.allocator.sets.shape import shape_of
from dradriver.allocator.sets.tables import Tables, tables_of
from dradriver.topology.check import check
from dradriver.topology.machine import Machine, PathType
from tests.effort import examples
from tests.strategies import machines

FEW = settings(max_examples=examples(60))
constraints = st.lists(st.sampled_from(Constraint), max_size=2, unique=True).map(tuple)


def has_ring(machine: Machine, places: tuple[int, ...]) -> bool:
    """Whether a ring over links alone visits all of them, by trying every order."""
    first, *others = places
    return any(
        all(machine.links[a][b] for a, b in itertools.pairwise((first, *order, first)))
        for order in itertools.permutations(others)
    )


def meets(machine: Machine, places: tuple[int, ...], constraint: Constraint) -> bool:
    """The constraint in its plainest words."""
    gpus = [machine.gpus[place] for place in places]
    paths = [machine.paths[a][b] for a, b in itertools.combinations(places, 2)]
    if constraint is Constraint.NVLINK:
        return any(machine.links[places[0]]) if len(places) == 1 else has_ring(machine, places)
    if constraint is Constraint.SAME_NUMA:
        return len({gpu.numa for gpu in gpus}) == 1 and gpus[0].numa is not None
    if constraint is Constraint.SAME_PCIE_SWITCH:
        return all(path <= PathType.PIX for path in paths)
    if all(gpu.pcie_root is not None for gpu in gpus):
        return len({gpu.pcie_root for gpu in gpus}) == 1
    return all(path <= PathType.PHB for path in paths)


def mask(places: tuple[int, ...]) -> int:
    return sum(1 << place for place in places)


@FEW
@given(machines(max_gpus=7), st.data())
def test_a_choice_is_free_admissible_and_best_and_a_refusal_is_true(machine: Machine, data: st.DataObject) -> None:
    count = len(machine.gpus)
    free = data.draw(st.sets(st.integers(0, count - 1)))
    gpus = data.draw(st.integers(1, count))
    request = Whole(containers=(gpus,), required=data.draw(constraints))
    tables = tables_of(machine)
    fitting = [
        places
        for places in itertools.combinations(sorted(free), gpus)
        if all(meets(machine, places, constraint) for constraint in request.required)
    ]
    numbers = [machine.gpus[place].index for place in sorted(free)]
    if not fitting:
        with pytest.raises(NoPlaceError):
            choose(machine, numbers, request)
        return
    choice = choose(machine, numbers, request)
    chosen = tuple(place for place, gpu in enumerate(machine.gpus) if gpu.index in choice.gpus)
    assert chosen in fitting
    best = max(float(tables.busbw[mask(places)]) for places in fitting)
    assert choice.busbw_gbps == pytest.approx(best, abs=0.01, rel=2e-5)
    assert choice == choose(machine, list(reversed(numbers)), request)


@FEW
@given(machines(max_gpus=7), st.data())
def test_what_is_said_of_a_choice_is_consistent(machine: Machine, data: st.DataObject) -> None:
    count = len(machine.gpus)
    containers = data.draw(
        st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) <= count).map(tuple)
    )
    request = Whole(containers=containers, preferred=data.draw(constraints))
    choice = choose(machine, [gpu.index for gpu in machine.gpus], request)
    assert tuple(len(part) for part in choice.containers) == containers
    assert sorted(itertools.chain.from_iterable(choice.containers)) == list(choice.gpus) == sorted(choice.ring)
    assert choice.ring[0] == choice.gpus[0]
    assert 0 <= choice.score <= 100
    places = tuple(place for place, gpu in enumerate(machine.gpus) if gpu.index in choice.gpus)
    met = [meets(machine, places, wish) for wish in request.preferred]
    assert choice.fallback == request.preferred[: met.index(True) if any(met) else None]
    if len(places) > 1:
        assert (choice.level is Level.NVLINK) == has_ring(machine, places)
        assert choice.bandwidth_gbps > 0


@FEW
@given(machines(max_gpus=7, min_gpus=2), st.data())
def test_numbering_the_gpus_otherwise_changes_bandwidth_where_nccl_goes_by_numbers_alone(
    machine: Machine, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(machine.gpus))))
    turned = Machine(
        name=machine.name,
        gpus=tuple(machine.gpus[place] for place in order),
        links=tuple(tuple(machine.links[a][b] for b in order) for a in order),
        paths=tuple(tuple(machine.paths[a][b] for b in order) for a in order),
        link_gbps=machine.link_gbps,
        socket_gbps=machine.socket_gbps,
        nccl_version=machine.nccl_version,
        pci=machine.pci,
    )
    before, after = tables_of(machine), tables_of(turned)
    torn, torn_after = split(shape_of(machine)), split(shape_of(turned))
    for members in range(1, 1 << len(order)):
        same = sum(1 << order[place] for place in range(len(order)) if members >> place & 1)
        if torn[same] == torn_after[members]:
            assert after.busbw[members] == pytest.approx(before.busbw[same], rel=1e-6)
        assert after.steps[after.weakest[members]] == before.steps[before.weakest[same]]


@FEW
@given(machines(max_gpus=6, min_gpus=2))
def test_more_free_gpus_never_make_the_best_set_worse(machine: Machine) -> None:
    tables: Tables = tables_of(machine)
    best = np.array([tables.best(gpus) for gpus in range(tables.size + 1)])
    for free in range(1 << tables.size):
        for place in range(tables.size):
            assert (best[:, free | 1 << place] >= best[:, free]).all()


@FEW
@given(machines(max_gpus=6), st.integers(19, 40), st.integers(0, 9))
def test_the_newest_nccl_is_the_default_and_an_older_one_differs_by_its_rules_alone(
    machine: Machine, minor: int, patch: int
) -> None:
    told = msgspec.structs.replace(machine, nccl_version=f"2.{minor}.{patch}")
    machine = msgspec.structs.replace(machine, nccl_version="")
    newest, own = tables_of(machine), tables_of(told)
    assert own.weakest.tolist() == newest.weakest.tolist()  # what wires there are is no matter of the release
    if minor >= 28:
        assert shape_of(told) == shape_of(machine)
    else:
        # With neither NVLS, AMD nor newer Intel CPUs only split sets differ, and none before 2.26 knows them.
        same = np.full(1 << own.size, minor >= 26) | ~split(shape_of(machine))
        if not machine.switched and machine.socket_gbps <= 10:
            assert (own.busbw[same] == newest.busbw[same]).all()
        assert split(shape_of(told)).any() <= (minor >= 26)


any_gbps = st.sampled_from((0.0, 1e-9, 20.0, 1e12))


@FEW
@given(machines(max_gpus=6, mixed=True), any_gbps, any_gbps, any_gbps)
def test_a_machine_of_any_valid_figures_has_tables(machine: Machine, link: float, socket: float, pcie: float) -> None:
    gpus = tuple(msgspec.structs.replace(gpu, pcie_gbps=pcie) if at else gpu for at, gpu in enumerate(machine.gpus))
    odd = check(msgspec.structs.replace(machine, gpus=gpus, link_gbps=link, socket_gbps=socket))
    tables = tables_of(odd)
    assert np.isfinite(tables.worth).all()
    assert ((tables.busbw >= 0) & (tables.busbw < 10_000)).all()
    numbers = [gpu.index for gpu in odd.gpus]
    assert choose(odd, numbers, Whole(containers=(len(numbers),))).gpus == tuple(numbers)


@FEW
@given(machines(max_gpus=7, min_gpus=3), st.data())
def test_a_set_is_worth_what_its_gpus_would_be_on_a_machine_of_their_own(machine: Machine, data: st.DataObject) -> None:
    shape = shape_of(machine)
    if any(map(any, shape.links)):  # beside links PCIe of several rates is bounded only roughly
        shape = msgspec.structs.replace(shape, pcie_gbps=(24.0,) * shape.size)
    kept = sorted(data.draw(st.sets(st.integers(0, shape.size - 1), min_size=2, max_size=shape.size - 1)))
    alone, among = Tables(shape.renumbered(kept)), Tables(shape)
    assert among.busbw[mask(tuple(kept))] == alone.busbw[-1]
