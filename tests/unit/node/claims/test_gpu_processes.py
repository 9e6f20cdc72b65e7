"""GPUs with processes on them that no claim accounts for: given to nobody in silence. Time is looptime's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from dradriver.node.claims.gpu_processes import Processes
from dradriver.node.claims.prepare import BUDGET_S
from dradriver.node.claims.reconcile import Reconciler
from dradriver.node.devices.device_kinds import AllocatedDevice, Found
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.whole_gpus import Whole, named
from dradriver.node.errors import DeviceBusyError, NotYetError, OccupiedError, SetupError
from dradriver.node.vendors.nvidia.discovery.nvml_interface import NvmlError
from dradriver.topology.machine import Machine
from tests.fakes.node import NODE, claim, device, edits, machine, result, uuid
from tests.fakes.preparing import World

pytestmark = pytest.mark.looptime


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def now() -> float:
    return asyncio.get_running_loop().time()


async def hand_over(world: World) -> tuple[str, str, str]:
    """GPU 0 of a claim that was given back as always, though process 4711 is still on it; what is asked for next."""
    preparer = world.preparer()
    _, _, uid = old = world.put(claim("old", [0]))
    await preparer.prepare(*old)
    world.processes = {uuid(0): [4711], uuid(7): [1]}
    await preparer.unprepare(uid)
    return world.put(claim("new", [0, 1]))


async def test_a_claim_waits_for_the_processes_that_are_still_on_its_gpu(world: World) -> None:
    asked = await hand_over(world)
    waiting = asyncio.create_task(world.preparer().prepare(*asked))
    await asyncio.sleep(5)
    assert (world.checkpoint, world.specs) == ([], {})
    world.processes = {}
    assert [one.uuid for one in (await waiting).devices] == [uuid(0), uuid(1)]
    assert now() < 7


async def test_processes_that_stay_are_named_before_the_kubelet_gives_up(world: World) -> None:
    asked = await hand_over(world)
    with pytest.raises(OccupiedError) as caught:
        await world.preparer().prepare(*asked)
    assert str(caught.value) == (
        f"GPU {uuid(0)}: processes still use it: 4711. End them, or restart the node if they cannot end"
    )
    assert BUDGET_S <= now() <= BUDGET_S + 2
    assert (world.checkpoint, world.specs) == ([], {})


async def test_of_many_processes_some_are_named(world: World) -> None:
    world.processes = {uuid(0): range(1, 41)}
    with pytest.raises(OccupiedError, match=r"1, 2, 3, 4, 5, 6, 7, 8 and 32 more\. End"):
        await world.preparer().prepare(*world.put(claim("c", [0])))


async def test_processes_of_a_claim_that_holds_the_gpu_still_are_that_claims(world: World) -> None:
    await world.preparer().prepare(*world.put(claim("old", [0])))
    world.processes = {uuid(0): [4711]}
    with pytest.raises(DeviceBusyError, match="default/old"):
        await world.preparer().prepare(*world.put(claim("new", [0])))


async def test_a_claim_that_is_prepared_has_processes_of_its_own(world: World) -> None:
    asked = world.put(claim("c", [0]))
    before = await world.preparer().prepare(*asked)
    world.processes = {uuid(0): [4711]}
    assert await world.preparer().prepare(*asked) == before


async def test_so_may_one_whose_entry_was_damaged(world: World) -> None:
    asked = world.put(claim("c", [0]))
    before = await world.preparer().prepare(*asked)
    world.processes = {uuid(0): [4711]}
    (world.folder / "state" / "claims" / "uid-c.json").write_text("damaged")
    assert await world.preparer().prepare(*asked) == before


PART = {"shareID": "a", "consumedCapacity": {"cores": "25", "memory": "4Gi"}}


def part(world: World, name: str) -> tuple[str, str, str]:
    return world.put(claim(name, results=[result("gpu", device(0), **PART | {"shareID": name})]))


def look_on(world: World, name: str) -> tuple[str, str, str]:
    return world.put(claim(name, results=[result("gpu", device(0), adminAccess=True)]))


async def test_who_looks_on_has_others_on_the_gpu(world: World) -> None:
    world.processes = {uuid(0): [4711]}
    await world.preparer().prepare(*look_on(world, "c"))
    assert now() < 1


async def test_the_first_share_of_a_gpu_waits_for_processes_and_later_ones_have_its_own_next_to_them(
    world: World,
) -> None:
    await world.preparer().prepare(*look_on(world, "l"))
    world.processes = {uuid(0): [4711]}
    with pytest.raises(OccupiedError, match="4711"):
        await world.preparer().prepare(*part(world, "c"))
    assert BUDGET_S <= now() <= BUDGET_S + 2
    world.processes = {}
    await world.preparer().prepare(*part(world, "c"))
    before, world.processes = now(), {uuid(0): [4711]}
    await world.preparer().prepare(*part(world, "d"))
    await world.preparer().prepare(*part(world, "c"))
    assert now() < before + 1


async def test_processes_may_be_those_of_a_share_whose_entry_is_damaged(world: World) -> None:
    await world.preparer().prepare(*part(world, "c"))
    (world.folder / "state" / "claims" / "uid-c.json").write_text("damaged")
    world.processes = {uuid(0): [4711]}
    await world.preparer().prepare(*part(world, "d"))
    assert now() < 1


async def test_a_driver_that_hangs_is_waited_for_by_the_first_share_alone(world: World) -> None:
    world.processes = TimeoutError()
    with pytest.raises(NotYetError, match="the GPU driver does not answer"):
        await world.preparer().prepare(*part(world, "c"))
    world.processes = {}
    await world.preparer().prepare(*part(world, "c"))
    world.processes = TimeoutError()
    await world.preparer().prepare(*part(world, "d"))


async def test_who_has_all_of_a_gpu_that_may_be_shared_has_no_other_on_it(world: World) -> None:
    world.processes = {uuid(0): [4711]}
    everything = {"shareID": "a", "consumedCapacity": {"cores": "100", "memory": "64Gi"}}
    with pytest.raises(OccupiedError, match="4711"):
        await world.preparer().prepare(*world.put(claim("c", results=[result("gpu", device(0), **everything)])))


class Instances(Whole):
    """MIG instances that exist: one for each GPU, of its name."""

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[None] | None:
        found = named(machine, wish.device)
        return None if found is None else Found(found, None)


async def test_a_gpu_in_mig_mode_has_processes_of_its_other_instances(world: World) -> None:
    gpus = tuple(msgspec.structs.replace(gpu, mig=()) for gpu in machine().gpus)
    world.machine, world.device_manager = (
        msgspec.structs.replace(machine(), gpus=gpus),
        DeviceManager([Instances(edits)]),
    )
    world.processes = {uuid(0): [4711]}
    await world.preparer().prepare(*world.put(claim("c", [0])))
    assert now() < 1


@pytest.mark.parametrize("error", [NvmlError("nvmlInit", 999, "Unknown Error"), SetupError("the driver is let go")])
async def test_a_driver_that_refuses_to_tell_holds_nothing_up_but_not_in_silence(
    world: World, error: NvmlError | SetupError, caplog: pytest.LogCaptureFixture
) -> None:
    world.processes = error
    await world.preparer().prepare(*world.put(claim("c", [0])))
    assert "cannot check whether processes use the GPUs" in caplog.text


async def test_a_driver_that_hangs_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = asyncio.Event()
    running = world.running

    async def hanging(gpus: Sequence[str]) -> Mapping[str, Sequence[int]]:
        await answers.wait()
        return await running(gpus)

    monkeypatch.setattr(world, "running", hanging)
    with pytest.raises(NotYetError, match="the GPU driver does not answer"):
        await world.preparer().prepare(*world.put(claim("c", [0])))
    assert now() <= BUDGET_S + 2
    waiting = asyncio.create_task(world.preparer().prepare(*world.put(claim("c", [0]))))
    await asyncio.sleep(20)
    answers.set()
    assert (await waiting).uid == "uid-c"


def reconciler(
    world: World, held: list[list[str]], gpus: Sequence[int] = range(8), running: Processes | None = None
) -> Reconciler:
    made = Reconciler(
        world.preparer(),
        world.get_claim,
        node=NODE,
        processes=running or world.running,
        gpus=lambda: [uuid(gpu) for gpu in gpus],
    )
    made.held.add(lambda found: held.append(sorted(found)))
    return made


async def test_a_gpu_that_no_claim_holds_is_kept_from_new_pods_while_processes_stay_on_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.preparer().prepare(*world.put(claim("c", [1])))
    held: list[list[str]] = []
    one = reconciler(world, held, range(4))
    world.processes = {uuid(0): [7], uuid(1): [8], uuid(5): [9]}
    await one.once()
    assert held == [[]]  # one that is just ending
    await one.once()
    assert held[1:] == [[uuid(0)]]
    assert f"GPU {uuid(0)} gets no new pods: no claim holds it, processes still use it: 7" in caplog.text
    world.processes = {uuid(1): [8]}
    await one.once()
    assert held[2:] == [[]]


@pytest.mark.parametrize("error", [NvmlError("nvmlInit", 999, "Unknown Error"), TimeoutError()])
async def test_what_cannot_be_known_stays_as_it_was(world: World, error: NvmlError | TimeoutError) -> None:
    held: list[list[str]] = []
    one = reconciler(world, held)
    world.processes = {uuid(0): [7]}
    for _ in range(2):
        await one.once()
    world.processes = error
    for _ in range(2):
        await one.once()
    assert held == [[], [uuid(0)], [uuid(0)], [uuid(0)]]
    world.processes = {}
    await one.once()
    assert held[-1] == []


async def test_a_claim_that_comes_while_the_driver_is_asked_has_processes_of_its_own(world: World) -> None:
    held: list[list[str]] = []

    async def while_a_claim_comes(gpus: Sequence[str]) -> Mapping[str, Sequence[int]]:
        if len(held) == 1:
            world.processes = {}
            await world.preparer().prepare(*world.put(claim("c", [0])))
            world.processes = {uuid(0): [7]}
        return await world.running(gpus)

    one = reconciler(world, held, running=while_a_claim_comes)
    world.processes = {uuid(0): [7]}
    await one.once()
    await one.once()
    assert held == [[], []]
