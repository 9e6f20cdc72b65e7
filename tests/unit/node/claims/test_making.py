"""Devices that have to be made on the hardware: the second ledger, and the thread that changes GPUs."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from pathlib import Path

import pytest

from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.whole_gpus import Whole
from dradriver.node.errors import ClaimError, DeviceBusyError, HardwareError, NotYetError
from dradriver.node.lock import locked, take
from dradriver.node.threads import Thread
from tests.fakes.making import Sliced, env, left_by_a_kill, patient
from tests.fakes.node import claim, edits, eventually, uuid
from tests.fakes.parts import PROFILE, PROFILES


@pytest.fixture
def world(tmp_path: Path) -> Sliced:
    return Sliced(tmp_path)


async def test_what_is_made_is_noted_given_and_undone(world: Sliced) -> None:
    preparer = world.preparer()
    done = await preparer.prepare(*world.halves("c", (0, 4), (1, 0)))
    assert world.instances == {0: [4], 1: [0]}
    assert sorted(world.made) == ["uid-c.0", "uid-c.1"]
    assert env(done) == [f"MIG={made.done['mig']}" for made in world.made.values() if made.done]
    (spec,) = world.specs.values()
    assert [device["containerEdits"]["env"][0] for device in spec["devices"]] == env(done)
    assert await preparer.prepare(*world.halves("c", (0, 4), (1, 0))) == done
    await preparer.unprepare("uid-c")
    assert world.nothing()


async def test_while_hardware_is_changed_others_are_prepared_and_given_back(world: Sliced) -> None:
    preparer = world.preparer()
    world.gpus.go_on.clear()
    waiting = asyncio.create_task(preparer.prepare(*world.halves("slow", (0, 0))))
    await eventually(world.gpus.working.is_set)
    await preparer.prepare(*world.put(claim("whole", [5])))
    await world.preparer().unprepare("uid-whole")
    assert not waiting.done()
    assert world.made["uid-slow.0"].done is None
    world.gpus.go_on.set()
    assert env(await waiting)


async def test_a_call_that_the_kubelet_gave_up_is_done_all_the_same_and_the_next_is_answered(world: Sliced) -> None:
    preparer = world.preparer()
    world.gpus.go_on.clear()
    asked = world.halves("c", (0, 0))
    waiting = asyncio.create_task(preparer.prepare(*asked))
    await eventually(world.gpus.working.is_set)
    waiting.cancel()
    await asyncio.wait([waiting])
    world.gpus.working.clear()
    again = asyncio.create_task(preparer.prepare(*asked))
    world.gpus.go_on.set()
    assert env(await again)
    assert not world.gpus.working.is_set()  # not made twice
    assert (world.instances, world.checkpoint) == ({0: [0]}, ["uid-c.json"])
    await preparer.unprepare("uid-c")
    assert world.nothing()


async def test_a_claim_that_is_given_back_while_it_is_made_is_undone_after_it(world: Sliced) -> None:
    preparer = world.preparer()
    world.gpus.go_on.clear()
    waiting = asyncio.create_task(preparer.prepare(*world.halves("c", (0, 0))))
    await eventually(world.gpus.working.is_set)
    back = asyncio.create_task(preparer.unprepare("uid-c"))
    await asyncio.sleep(0)
    world.gpus.go_on.set()
    await asyncio.wait([waiting, back])
    assert world.nothing()


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True])
async def test_a_prepare_that_waits_for_the_hardware_does_not_outlive_the_unprepare_after_it(
    world: Sliced, other: bool
) -> None:
    preparer = world.preparer()
    second = world.another() if other else preparer
    for _ in range(5):  # who gets the lock first is chance
        async with locked(world.folder / "state" / "hardware.lock"):
            waiting = asyncio.create_task(preparer.prepare(*world.halves("c", (0, 0))))
            await eventually(lambda: world.opened("hardware.lock") == 2)
            waiting.cancel()
            back = asyncio.create_task(second.unprepare("uid-c"))
            await eventually(lambda: world.opened("calls.lock") == 2)
        await back
        assert world.opened("calls.lock") == 0
        assert world.nothing()


@pytest.mark.parametrize("other", [False, True])
async def test_a_claim_that_is_still_being_given_back_is_not_answered_from_its_entry(
    world: Sliced, other: bool
) -> None:
    preparer = world.preparer()
    second = world.another() if other else preparer
    asked = world.halves("c", (0, 0))
    await preparer.prepare(*asked)
    async with locked(world.folder / "state" / "hardware.lock"):
        back = asyncio.create_task(preparer.unprepare("uid-c"))
        await eventually(lambda: world.opened("hardware.lock") == 2)
        back.cancel()  # the kubelet gives up
        await asyncio.wait([back])
        again = asyncio.create_task(second.prepare(*asked))
        await eventually(lambda: world.opened("calls.lock") == 2)
        assert not again.done()
    assert env(await again)
    assert world.instances == {0: [0]}
    assert len(world.specs) == 1


async def test_calls_for_a_claim_do_not_cross_and_those_for_others_do(world: Sliced) -> None:
    world.gpus.go_on.clear()
    waiting = asyncio.create_task(world.preparer().prepare(*world.halves("c", (0, 0))))
    await eventually(world.gpus.working.is_set)
    newer = world.another()
    newer._budget_s = 0.0
    asked = world.halves("c", (0, 0))
    with pytest.raises(NotYetError, match=r"an earlier call for the claim \(uid uid-c\) is still under way"):
        await newer.prepare(*asked)
    with pytest.raises(NotYetError, match="an earlier call for the claim"):
        await newer.unprepare("uid-c")
    await newer.prepare(*world.put(claim("whole", [5])))
    world.gpus.go_on.set()
    await waiting
    assert await newer.prepare(*asked) == await waiting
    (entry,) = (entry for uid, entry in (await newer.prepared()).items() if uid == "uid-c")
    held = await take(world.folder / "state" / "calls.lock", of="uid-c")
    assert not await newer.unprepare_if("uid-c", entry.stamp)  # somebody is at it
    os.close(held)
    assert await newer.unprepare_if("uid-c", entry.stamp)
    assert world.instances == {}


async def test_a_part_has_processes_of_others_next_to_it(world: Sliced) -> None:
    world.processes = {uuid(0): [4711]}
    assert env(await world.preparer().prepare(*world.halves("c", (0, 0))))


async def test_what_cannot_be_made_leaves_nothing_of_the_claim(world: Sliced) -> None:
    world.gpus.create_gpu_instance(uuid(1), PROFILES["7g.80gb"], 0)  # somebody's own
    with pytest.raises(HardwareError, match="Insufficient Resources"):
        await patient(world).prepare(*world.halves("c", (0, 0), (0, 4), (1, 0)))
    assert world.instances == {1: [0]}
    assert (world.made, world.specs, world.checkpoint) == ({}, {}, [])


async def test_a_part_in_use_stays_prepared_until_it_is_not(world: Sliced) -> None:
    preparer = world.preparer()
    done = await preparer.prepare(*world.halves("c", (0, 0), (1, 0)))
    with world.gpus.state(uuid(0)) as state:
        state.users = {4711: env(done)[0].removeprefix("MIG=")}
    with pytest.raises(ClaimError, match=r"cannot be undone: .*In use by another client"):
        await preparer.unprepare("uid-c")
    assert (world.instances, world.checkpoint) == ({0: [0]}, ["uid-c.json"])
    assert (world.specs, world.made["uid-c.0"].done) == ({}, None)  # no container is started with what is half undone
    await world.preparer().recover()
    assert world.specs == {}
    with pytest.raises(DeviceBusyError):
        await patient(world).prepare(*world.halves("other", (0, 0)))
    with world.gpus.state(uuid(0)) as state:
        state.users = {}
    await preparer.unprepare("uid-c")
    assert world.nothing()


async def test_parts_of_one_gpu_have_an_owner_each_and_a_whole_gpu_has_none_with_them(world: Sliced) -> None:
    preparer = patient(world)
    await preparer.prepare(*world.halves("a", (0, 0)))
    await preparer.prepare(*world.halves("b", (0, 4)))
    for taken in (world.halves("c", (0, 4)), world.put(claim("whole", [0]))):
        with pytest.raises(DeviceBusyError, match="is still held by claim default/"):
            await preparer.prepare(*taken)
    assert world.instances == {0: [0, 4]}


async def test_two_instances_change_hardware_one_after_the_other(world: Sliced) -> None:
    world.gpus.go_on.clear()
    first = asyncio.create_task(world.preparer().prepare(*world.halves("a", (0, 0))))
    await eventually(world.gpus.working.is_set)
    cleaning = asyncio.create_task(world.preparer().clean())  # does not undo what is being made
    second = asyncio.create_task(world.preparer().prepare(*world.halves("b", (1, 0))))
    await eventually(lambda: "uid-a.0" in world.made)
    assert "uid-b.0" not in world.made
    world.gpus.go_on.set()
    await asyncio.gather(first, second, cleaning)
    assert world.instances == {0: [0], 1: [0]}


async def test_a_kind_that_this_agent_does_not_know_is_left_alone(
    world: Sliced, caplog: pytest.LogCaptureFixture
) -> None:
    await left_by_a_kill(world, boot=world.boot, done=True)
    world.device_manager = DeviceManager([Whole(edits)])
    await world.preparer().clean()
    assert "this agent knows no devices of kind 'half'" in caplog.text
    assert (world.instances, list(world.made)) == ({0: [4]}, ["uid-c.0"])


async def test_what_cannot_be_undone_keeps_nothing_else_that_was_left_from_being_undone(
    world: Sliced, caplog: pytest.LogCaptureFixture
) -> None:
    preparer = world.preparer()
    for name, gpu in (("a", 0), ("b", 1), ("c", 2)):
        await preparer.prepare(*world.halves(name, (gpu, 0)))
        (world.folder / f"state/claims/uid-{name}.json").unlink()
    mig = (world.made["uid-b.0"].done or {})["mig"]
    with world.gpus.state(uuid(1)) as state:
        state.users = {4711: mig}  # and it hangs in the driver
    await preparer.clean()
    assert (world.instances, list(world.made)) == ({1: [0]}, ["uid-b.0"])
    assert "cannot be undone now" in caplog.text
    with world.gpus.state(uuid(1)) as state:
        state.users = {}
    await preparer.clean()
    assert (world.instances, world.made) == ({}, {})


async def test_hardware_that_cannot_be_written_is_an_error_of_the_claim(world: Sliced) -> None:
    (world.folder / "hardware.json").unlink()
    (world.folder / "hardware.json").mkdir()
    with pytest.raises(NotYetError, match="hardware"):
        await patient(world).prepare(*world.halves("c", (0, 4)))
    assert world.checkpoint == []


async def test_a_driver_that_hangs_is_said_and_what_it_does_late_is_undone(
    world: Sliced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.node.devices.device_manager.PATIENCE_S", 0.05)
    world.gpus.go_on.clear()
    preparer = patient(world)
    asked = world.halves("c", (0, 4))
    with pytest.raises(NotYetError, match="the GPU driver has not answered"):
        await preparer.prepare(*asked)
    assert (world.checkpoint, list(world.made)) == ([], ["uid-c.0"])
    await preparer.prepare(*world.put(claim("whole", [5])))  # others do not wait for it
    await preparer.unprepare("uid-whole")
    monkeypatch.undo()
    world.gpus.go_on.set()
    await preparer.clean()
    assert world.nothing()


async def test_what_a_driver_does_late_is_over_before_another_instance_changes_anything(
    world: Sliced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.node.devices.device_manager.PATIENCE_S", 0.05)
    world.gpus.go_on.clear()
    asked = world.halves("c", (0, 4))
    with pytest.raises(NotYetError, match="the GPU driver has not answered"):
        await patient(world).prepare(*asked)  # what it made is to be undone, too late
    monkeypatch.undo()
    again = asyncio.create_task(world.another().prepare(*asked))
    await eventually(lambda: world.opened("hardware.lock") == 2)
    world.gpus.working.clear()
    world.gpus.go_on.set()
    assert env(await again)
    assert (world.instances, world.made["uid-c.0"].done is not None) == ({0: [4]}, True)


async def test_an_instance_that_ends_keeps_the_hardware_until_the_driver_has_answered(world: Sliced) -> None:
    world.gpus.go_on.clear()
    preparer = world.preparer()
    waiting = asyncio.create_task(preparer.prepare(*world.halves("c", (0, 4))))
    await eventually(world.gpus.working.is_set)
    for task in {waiting, *preparer._making._tasks}:  # as the end of its loop does
        task.cancel()
    await asyncio.wait([waiting])
    cleaning = asyncio.create_task(world.another().clean())
    await eventually(lambda: world.opened("hardware.lock") == 2)
    world.gpus.go_on.set()
    await cleaning
    assert world.nothing()


async def test_works_are_done_one_after_the_other_and_an_error_is_its_callers() -> None:
    thread, done, may = Thread("t"), [], threading.Event()

    def work(number: int) -> int:
        may.wait(timeout=30)
        done.append((number, threading.get_ident()))
        return 1 // number

    tasks = [asyncio.create_task(thread.run(functools.partial(work, number))) for number in (3, 0, 1, 2)]
    await asyncio.sleep(0)
    tasks[2].cancel()  # its work is done all the same
    may.set()
    await asyncio.wait(tasks)
    assert [number for number, _ in done] == [3, 0, 1, 2]
    assert len({ident for _, ident in done} - {threading.get_ident()}) == 1
    assert (tasks[0].result(), tasks[3].result()) == (0, 0)
    assert isinstance(tasks[1].exception(), ZeroDivisionError)


async def test_a_question_whose_caller_gave_up_is_not_asked_any_more() -> None:
    thread, asked, may = Thread("t"), [], threading.Event()

    def ask(number: int) -> int:
        asked.append(number)
        may.wait(timeout=30)
        return number

    tasks = [asyncio.create_task(thread.run(functools.partial(ask, number), question=True)) for number in range(50)]
    await eventually(lambda: asked == [0])
    for task in tasks[1:-1]:
        task.cancel()
    await asyncio.wait(tasks[1:-1])
    may.set()
    assert await tasks[-1] == 49
    assert asked == [0, 49]


def test_a_profile_is_one_that_simulated_gpus_have(world: Sliced) -> None:
    for start in (0, 4):
        world.gpus.create_gpu_instance(uuid(0), PROFILE, start)
