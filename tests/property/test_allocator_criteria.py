"""Whatever is demanded, of one machine or of a cluster: the answer is free, of the right size, and as demanded."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_placement import place_gang
from dradriver.allocator.gang_request import GangRequest
from dradriver.allocator.request import Choice, Constraint, NoPlaceError, Strategy, Weights, Whole
from dradriver.topology.machine import Machine
from tests.effort import examples
from tests.strategies import machines

FEW = settings(max_examples=examples(60))
rates = st.sampled_from((0.0, 0.0, 5.0, 12.0, 25.0, 40.0))


@st.composite
def requests(draw: st.DrawFn, *, most: int) -> Whole:
    """Any request that could be put."""
    return Whole(
        containers=tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=2))),
        required=tuple(draw(st.lists(st.sampled_from(Constraint), max_size=1))),
        preferred=tuple(draw(st.lists(st.sampled_from(Constraint), max_size=2, unique=True))),
        strategy=draw(st.sampled_from(Strategy)),
        min_bandwidth_gbps=draw(rates),
        min_busbw_gbps=draw(rates),
        product=draw(st.sampled_from(("", "", "*H100*"))),
        min_memory_mib=draw(st.sampled_from((0, 0, 1 << 18))),
        exclude=tuple(draw(st.sets(st.integers(0, 6), max_size=2))),
        max_cross_nvswitch_gpus=draw(st.sampled_from((None, None, 0, 1))),
        prefer_same_numa=draw(st.booleans()),
        weights=draw(st.sampled_from((Weights(), Weights(pcie=0, numa=90)))),
    )


def is_as_demanded(choice: Choice, machine: Machine, free: set[int], request: Whole) -> None:
    assert len(choice.gpus) == request.gpus
    assert set(choice.gpus) <= free - set(request.exclude)
    assert tuple(len(part) for part in choice.containers) == request.containers
    assert sorted(itertools.chain.from_iterable(choice.containers)) == list(choice.gpus)
    gpus = [gpu for gpu in machine.gpus if gpu.index in choice.gpus]
    assert all("H100" in gpu.product for gpu in gpus if request.product)
    assert all(gpu.memory_mib >= request.min_memory_mib for gpu in gpus)
    if request.gpus > 1:
        assert choice.busbw_gbps >= request.min_busbw_gbps - 0.01
        assert choice.bandwidth_gbps >= request.min_bandwidth_gbps - 0.01
        assert Constraint.NVLINK not in request.required or choice.level.value == "nvlink"


@FEW
@given(machines(max_gpus=7), st.data())
def test_a_choice_is_as_demanded(machine: Machine, data: st.DataObject) -> None:
    free = set(data.draw(st.sets(st.sampled_from([gpu.index for gpu in machine.gpus]))))
    request = data.draw(requests(most=4))
    try:
        choice = choose(machine, free, request)
    except NoPlaceError as refusal:
        assert str(refusal).startswith("No place for ")
        return
    is_as_demanded(choice, machine, free, request)


@FEW
@given(st.lists(machines(max_gpus=5), min_size=1, max_size=4), st.data())
def test_places_in_a_cluster_are_as_demanded(nodes: list[Machine], data: st.DataObject) -> None:
    fleet = Fleet()
    for number, own in enumerate(nodes):
        free = data.draw(st.sets(st.sampled_from([gpu.index for gpu in own.gpus])))
        fleet.set_node(f"n{number}", own, free)
    machine = {f"n{number}": each for number, each in enumerate(nodes)}
    request = data.draw(requests(most=3))
    open_ = {name: set(fleet.free(name)) for name in fleet.nodes}
    try:
        choices = fleet.rank(request)
    except NoPlaceError as refusal:
        for node in fleet.nodes:
            fleet.set_free(node, [gpu.index for gpu in machine[node].gpus])
        every = any(_fits(machine[name], {gpu.index for gpu in machine[name].gpus}, request) for name in fleet.nodes)
        assert refusal.stable.endswith("even if all its GPUs are free.") != every
        for name in fleet.nodes:
            assert not _fits(machine[name], open_[name], request)
        return
    assert len({choice.node for choice in choices}) == len(choices)
    for choice in choices:
        is_as_demanded(choice, machine[choice.node], open_[choice.node], request)
    assert {choice.node for choice in choices} == {
        name for name in fleet.nodes if _fits(machine[name], open_[name], request)
    }


@FEW
@given(st.lists(machines(max_gpus=5), min_size=1, max_size=4), st.data())
def test_gangs_are_placed_whole(nodes: list[Machine], data: st.DataObject) -> None:
    fleet = Fleet()
    for number, own in enumerate(nodes):
        fleet.set_node(f"n{number}", own, data.draw(st.sets(st.sampled_from([gpu.index for gpu in own.gpus]))))
    machine = {f"n{number}": each for number, each in enumerate(nodes)}
    request = GangRequest(pod=data.draw(requests(most=2)), pods=data.draw(st.integers(1, 5)))
    try:
        found = place_gang(fleet, request)
    except NoPlaceError:
        return
    assert len(found.pods) == request.pods
    open_ = {name: set(fleet.free(name)) for name in fleet.nodes}
    for pod in found.pods:
        is_as_demanded(pod, machine[pod.node], open_[pod.node], request.pod)
        open_[pod.node] -= set(pod.gpus)


def _fits(machine: Machine, free: set[int], request: Whole) -> bool:
    try:
        choose(machine, free, request)
    except NoPlaceError:
        return False
    return True
