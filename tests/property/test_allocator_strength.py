"""Where no bandwidth can be predicted, sets compare by the weakest step of their best ring, then by all their links."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_placement import place_gang
from dradriver.allocator.gang_request import GangRequest
from dradriver.allocator.request import Level, NoPlaceError, Whole
from dradriver.allocator.sets.tables import MAX_GPUS
from dradriver.topology import profiles
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import AMD
from tests import rings
from tests.effort import examples
from tests.paths import SHARED_DATA
from tests.strategies import machines

MODELS = sorted((SHARED_DATA / "vendors" / "amd" / "rccl_models").glob("*.xml"))
OTHERS = [*profiles.names("amd"), *profiles.names("ascend")]
BY_HAND = {"topo_4p4h", "topo_8p1h_1"}  # which no machine is


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_best_set_of_every_dump(path: Path) -> None:
    machine = read_machine(path)
    sets, asked, wrong = rings.compare(machine, largest=8 if len(machine.gpus) <= 8 else 5, some=60)
    assert wrong == 0
    assert sets >= 11  # of four GPUs
    assert asked >= 17


@pytest.mark.shared_data
def test_eight_dies_of_an_mi250_are_linked_throughout() -> None:
    """NCCL's model prefers sets whose ring has a step over PCIe there."""
    machine = read_machine(SHARED_DATA / "vendors" / "amd" / "rccl_models" / "topo_16p1h.xml")
    choice = choose(machine, range(16), Whole(containers=(8,)))
    assert rings.weakest_is_a_link(machine, sum(1 << gpu for gpu in choice.gpus))
    assert (choice.level, choice.bandwidth_gbps) == (Level.NVLINK, 50.0)
    assert choice.busbw_gbps == 0


@pytest.mark.parametrize("name", OTHERS)
def test_the_best_set_of_every_profile(name: str) -> None:
    free_of_rules = msgspec.structs.replace(profiles.load(name), blocks=None)
    assert rings.compare(free_of_rules, largest=4, some=20)[2] == 0


@settings(max_examples=examples(60))
@given(machines(max_gpus=6, min_gpus=2), st.data())
def test_the_best_set_of_any_machine(machine: Machine, data: st.DataObject) -> None:
    count = len(machine.gpus)
    if machine.switched or count > MAX_GPUS:
        return
    amd = msgspec.structs.replace(
        machine, gpus=tuple(msgspec.structs.replace(gpu, vendor=AMD.word) for gpu in machine.gpus)
    )
    free = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=2)))
    gpus = data.draw(st.integers(2, len(free)))
    masks, worth = rings.worth(amd, gpus)
    value = dict(zip(masks.tolist(), worth.tolist(), strict=True))
    usable = sum(1 << place for place in free)
    choice = choose(amd, [amd.gpus[place].index for place in free], Whole(containers=(gpus,)))
    chosen = sum(1 << place for place, gpu in enumerate(amd.gpus) if gpu.index in choice.gpus)
    assert value[chosen] == max(own for mask, own in value.items() if not mask & ~usable)
    assert choice.busbw_gbps == 0


@pytest.mark.parametrize("name", OTHERS)
def test_a_wish_for_predicted_bandwidth_is_refused_with_the_reason(name: str) -> None:
    machine = profiles.load(name)
    wish = Whole(containers=(2,), min_busbw_gbps=0.1, vendor=machine.vendor.word)
    every = [gpu.index for gpu in machine.gpus]
    with pytest.raises(NoPlaceError, match=f"bus bandwidth of {machine.vendor.link} cannot be predicted"):
        choose(machine, every, wish)
    fleet = Fleet()
    fleet.set_node("node", machine, every)
    for explain in (True, False):
        with pytest.raises(NoPlaceError, match="cannot be predicted"):
            fleet.rank(wish, explain=explain)
    with pytest.raises(NoPlaceError, match="cannot be predicted"):
        place_gang(fleet, GangRequest(pods=1, pod=wish))
    assert fleet.rank(Whole(containers=(2,), vendor=machine.vendor.word))[0].node == "node"
    assert choose(machine, every, Whole(containers=(1,), min_busbw_gbps=0.1)).gpus
