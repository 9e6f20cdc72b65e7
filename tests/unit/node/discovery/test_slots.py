"""GPUs keep their numbers: over losses, reboots, replacements, damaged files and the first start of such an agent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.node.discovery.gpu_slots import Published, Slots
from dradriver.node.discovery.simulated_machine import Simulated, without
from dradriver.topology import machine_codec, profiles
from dradriver.topology.machine import Machine
from tests.fakes.node import NODE, machine

NOTHING = Published(None, ())
NEW = "GPU-11111111-2222-3333-4444-555555555555"


def slots(state: Path, published: Published | None = NOTHING, removed: tuple[str, ...] = ()) -> Slots:
    """Return the table as a new process of the agent opens it."""
    return Slots(
        state, published=lambda: published, is_removed=lambda uuid: uuid.lower() in {each.lower() for each in removed}
    )


def loaded_again(found: Machine) -> Machine:
    """Return a machine as the driver numbers it after a reboot: by PCI address, without gaps."""
    order = sorted(range(len(found.gpus)), key=lambda position: found.gpus[position].pci)
    left = found.subset(order)
    gpus = tuple(msgspec.structs.replace(gpu, index=number) for number, gpu in enumerate(left.gpus))
    return msgspec.structs.replace(left, gpus=gpus)


def changed(found: Machine, number: int, **fields: str) -> Machine:
    """Return the machine with something else of one GPU."""
    gpus = tuple(msgspec.structs.replace(gpu, **fields) if gpu.index == number else gpu for gpu in found.gpus)
    return msgspec.structs.replace(found, gpus=gpus)


def numbers(found: Machine) -> dict[str, int]:
    return {gpu.uuid: gpu.index for gpu in found.gpus}


WHOLE = machine()
NUMBERS = numbers(WHOLE)


def expected(*positions: int) -> dict[str, int]:
    return {WHOLE.gpus[position].uuid: position for position in positions}


async def test_new_gpus_have_the_numbers_of_the_driver(tmp_path: Path) -> None:
    assert await slots(tmp_path).number(WHOLE) == WHOLE


async def test_a_lost_gpu_keeps_its_slot_over_a_reboot_and_an_agents_restart(tmp_path: Path) -> None:
    await slots(tmp_path).number(WHOLE)
    left = loaded_again(without(WHOLE, {"0"}))
    assert [gpu.index for gpu in left.gpus] == list(range(7))
    found = await slots(tmp_path).number(left)
    assert numbers(found) == expected(1, 2, 3, 4, 5, 6, 7)
    assert [gpu.driver_index for gpu in found.gpus] == list(range(7))
    assert found.gpus[0].label == "GPU1 (driver index 0)"
    assert all(found.links[i][j] == WHOLE.links[i + 1][j + 1] for i in range(7) for j in range(7))
    assert await slots(tmp_path).number(WHOLE) == WHOLE


async def test_a_gpu_at_the_address_of_a_missing_one_takes_its_slot_and_keeps_it(tmp_path: Path) -> None:
    await slots(tmp_path).number(WHOLE)
    replaced = changed(WHOLE, 3, uuid=NEW)
    assert numbers(await slots(tmp_path).number(replaced))[NEW] == 3
    assert await slots(tmp_path).number(replaced) == replaced


async def test_a_replacement_at_another_address_gets_a_slot_of_its_own(tmp_path: Path) -> None:
    await slots(tmp_path).number(WHOLE)
    other = loaded_again(changed(WHOLE, 3, uuid=NEW, pci="0000:01:00.0"))
    found = await slots(tmp_path).number(other)
    assert numbers(found) == expected(0, 1, 2, 4, 5, 6, 7) | {NEW: 8}
    assert found.gpus[-1].driver_index == 0
    assert machine_codec.decode(machine_codec.encode(found)) == found
    back = await slots(tmp_path).number(WHOLE)
    assert numbers(back) == NUMBERS


async def test_a_gpu_that_comes_back_elsewhere_has_its_slot_though_another_is_in_its_place(tmp_path: Path) -> None:
    await slots(tmp_path).number(WHOLE)
    a, b = WHOLE.gpus[0], WHOLE.gpus[1]
    swapped = changed(changed(WHOLE, 0, uuid=b.uuid), 1, uuid=a.uuid)
    assert numbers(await slots(tmp_path).number(swapped)) == NUMBERS


async def test_only_an_administrator_clears_a_slot(tmp_path: Path) -> None:
    await slots(tmp_path).number(WHOLE)
    gone = WHOLE.gpus[3]
    left = without(WHOLE, {"3"})
    for _ in range(3):
        await slots(tmp_path).number(left)
    other = changed(WHOLE, 3, uuid=NEW, pci="0000:01:00.0")
    assert numbers(await slots(tmp_path / "kept").number(WHOLE)) == NUMBERS
    assert numbers(await slots(tmp_path / "kept").number(other))[NEW] == 8
    assert numbers(await slots(tmp_path, removed=(gone.uuid.upper(),)).number(left)) == expected(0, 1, 2, 4, 5, 6, 7)
    assert numbers(await slots(tmp_path).number(other))[NEW] == 3


async def test_a_gpu_that_is_there_keeps_its_slot_against_an_administrators_file(tmp_path: Path) -> None:
    removed = tuple(NUMBERS)
    await slots(tmp_path, removed=removed).number(WHOLE)
    assert numbers(await slots(tmp_path, removed=removed).number(loaded_again(WHOLE))) == NUMBERS


async def test_the_first_such_agent_takes_over_what_is_published(tmp_path: Path) -> None:
    gone = WHOLE.gpus[0]
    left = without(WHOLE, {"0"})
    published = Published(left, (LostGpu(0, gone.pci, gone.uuid),))
    found = await slots(tmp_path, published).number(loaded_again(left))
    assert numbers(found) == expected(1, 2, 3, 4, 5, 6, 7)
    assert numbers(await slots(tmp_path).number(WHOLE)) == NUMBERS


async def test_slices_of_another_machine_tell_no_numbers(tmp_path: Path) -> None:
    other = profiles.load("mi300x-x8", seed=NODE)
    assert numbers(await slots(tmp_path, Published(other, ())).number(WHOLE)) == NUMBERS


async def test_numbers_that_the_driver_gave_again_before_are_put_right_by_the_addresses(tmp_path: Path) -> None:
    gone = WHOLE.gpus[0]
    order = sorted(WHOLE.gpus, key=lambda gpu: gpu.pci)
    left = loaded_again(without(WHOLE, {"0"}))
    lost_at = order.index(gone)
    found = await slots(tmp_path, Published(left, (LostGpu(lost_at, gone.pci, gone.uuid),))).number(left)
    assert numbers(found) == {gpu.uuid: number for number, gpu in enumerate(order) if gpu is not gone}


async def test_without_a_table_numbers_are_final_once_the_slices_were_read(tmp_path: Path) -> None:
    opened = slots(tmp_path, None)
    await opened.number(WHOLE)
    assert (opened.is_settled, list((tmp_path / "slots").glob("*"))) == (False, [])
    with_table = slots(tmp_path / "other")
    await with_table.number(WHOLE)
    again = slots(tmp_path / "other", None)
    await again.number(WHOLE)
    assert again.is_settled


def _damage(path: Path) -> None:
    path.write_bytes(b"\0" * 64)


def _newer(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":7'))
    os.utime(path, (1, 1))


@pytest.mark.parametrize("spoil", [_damage, _newer])
async def test_entries_that_cannot_be_read_leave_slots_unknown_unless_slices_tell(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    for state in ("told", "unknown"):
        await slots(tmp_path / state).number(WHOLE)
        for number in (0, 5):
            spoil(tmp_path / state / "slots" / f"{number}.json")
    assert await slots(tmp_path / "told", Published(WHOLE, ())).number(WHOLE) == WHOLE
    found = await slots(tmp_path / "unknown").number(WHOLE)
    unknown = {gpu.uuid for gpu in found.gpus if gpu.has_slot is False}
    assert unknown == {WHOLE.gpus[0].uuid, WHOLE.gpus[5].uuid}
    assert {gpu.index for gpu in found.gpus if gpu.uuid in unknown} == {8, 9}
    assert numbers(found) | expected(0, 5) == NUMBERS
    assert machine_codec.decode(machine_codec.encode(found)) == found
    for damaged in (tmp_path / "unknown" / "slots").glob("*.json.*"):
        damaged.unlink()
    assert await slots(tmp_path / "unknown").number(WHOLE) == WHOLE


async def test_a_table_that_cannot_be_used_stops_no_pod(tmp_path: Path) -> None:
    (tmp_path / "slots").write_text("a file in the folder's place")
    opened = slots(tmp_path)
    assert numbers(await opened.number(WHOLE)).keys() == NUMBERS.keys()
    again = await opened.number(loaded_again(without(WHOLE, {"0"})))
    assert {gpu.uuid for gpu in again.gpus} == {gpu.uuid for gpu in WHOLE.gpus[1:]}
    (tmp_path / "slots").unlink()
    assert numbers(await slots(tmp_path).number(WHOLE)) == NUMBERS


async def test_two_agents_side_by_side_give_a_gpu_one_number(tmp_path: Path) -> None:
    one, two = slots(tmp_path), slots(tmp_path)
    await one.number(WHOLE)
    other = changed(WHOLE, 3, uuid=NEW, pci="0000:01:00.0")
    assert await two.number(other) == await one.number(other)


def simulated(folder: Path, boot: str) -> Simulated:
    return Simulated("dgx1-v100", node=NODE, folder=folder, loaded=lambda: boot)


@pytest.mark.parametrize("gpu", [0, 3])
def test_a_simulated_driver_keeps_its_numbers_until_it_is_loaded_again(tmp_path: Path, gpu: int) -> None:
    first = simulated(tmp_path, "boot-1")
    first.read()
    (tmp_path / "lost").write_text(str(gpu))
    kept = [number for number in range(8) if number != gpu]
    assert [found.index for found in first.read().gpus] == kept
    assert [found.index for found in simulated(tmp_path, "boot-1").read().gpus] == kept
    assert [found.index for found in simulated(tmp_path, "boot-2").read().gpus] == list(range(7))
    (tmp_path / "lost").unlink()
    assert simulated(tmp_path, "boot-2").read() == WHOLE


def test_a_gpus_label_has_the_drivers_number_only_where_that_differs() -> None:
    assert WHOLE.gpus[2].label == "GPU2"
    assert msgspec.structs.replace(WHOLE.gpus[2], driver_index=1).label == "GPU2 (driver index 1)"


async def test_an_agent_without_a_folder_keeps_numbers_by_what_it_published() -> None:
    def opened(published: Published | None) -> Slots:
        return Slots(None, published=lambda: published)

    agent = opened(NOTHING)
    assert await agent.number(WHOLE) == WHOLE
    left = loaded_again(without(WHOLE, {"0"}))
    found = await agent.number(left)
    assert numbers(found) == expected(1, 2, 3, 4, 5, 6, 7)
    gone = WHOLE.gpus[0]
    again = opened(Published(found, (LostGpu(0, gone.pci, gone.uuid),)))
    assert await again.number(left) == found
