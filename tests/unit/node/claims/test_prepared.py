"""Claims that are prepared already: answered again, after a reboot, beside another instance. Time is looptime's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.kube.errors import Unreachable
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.errors import NotYetError
from dradriver.node.lock import locked
from tests.fakes.node import claim, device, machine, parameters, result, uuid
from tests.fakes.preparing import World

pytestmark = pytest.mark.looptime


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_prepare_is_idempotent_also_for_another_instance(world: World) -> None:
    asked = world.put(claim("c", [0, 1]))
    first = await world.preparer().prepare(*asked)
    assert await world.preparer().prepare(*asked) == first
    assert [d.uuid for d in first.devices] == [uuid(0), uuid(1)]
    assert (len(world.specs), len(world.checkpoint)) == (1, 1)


async def test_trap_5_the_spec_is_written_again_at_every_prepare_and_at_start(world: World) -> None:
    preparer = world.preparer()
    asked = world.put(claim("c", [0], config=[parameters({"gpu": [uuid(0)]})]))
    await preparer.prepare(*asked)
    specs = world.specs
    for again in (lambda: preparer.prepare(*asked), world.preparer().recover):
        for path in (world.folder / "cdi").iterdir():
            path.unlink()
        (world.folder / "cdi").rmdir()  # a reboot: /var/run is a tmpfs
        await again()
        assert world.specs == specs


async def test_after_a_reboot_files_that_a_power_cut_may_have_damaged_are_written_again(world: World) -> None:
    asked = world.put(claim("c", [0]))
    await world.preparer().prepare(*asked)
    ((path, text),) = [(path, path.read_bytes()) for path in (world.folder / "state" / "files").rglob("*.json")]
    path.write_bytes(b"")
    world.boot = "boot-2"
    preparer = world.preparer()
    await preparer.recover()
    assert len(world.specs) == 1  # nobody starts a container of it before it is prepared again
    done = await preparer.prepare(*asked)
    assert (done.boot, path.read_bytes()) == ("boot-2", text)
    count = world.asked
    assert await preparer.prepare(*asked) == done
    assert world.asked == count


async def test_start_needs_no_api_server_and_removes_what_no_claim_owns(world: World) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("c", [0])))
    (world.folder / "cdi" / "gpu.topology-claim_gone.json").write_text("{}")
    (world.folder / "cdi" / "gpu.topology-claim_half.json.tmp").write_text("{")
    (world.folder / "state" / "claims" / "half.json.tmp").write_text("{")
    world.claims.clear()
    asked = world.asked
    await world.preparer().recover()
    assert list(world.specs) == ["gpu.topology-claim_uid-c.json"]
    assert world.checkpoint == ["uid-c.json"]
    assert world.asked == asked


async def test_a_claim_whose_checkpoint_is_damaged_keeps_its_spec_until_unprepare(world: World) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("c", [0])))
    (world.folder / "state" / "claims" / "uid-c.json").write_bytes(b"damaged")
    await world.preparer().recover()
    assert list(world.specs) == ["gpu.topology-claim_uid-c.json"]
    await preparer.unprepare("uid-c")
    assert (world.specs, world.checkpoint) == ({}, [])


async def test_a_claim_that_is_prepared_is_answered_at_once_without_a_question(world: World) -> None:
    preparer = world.preparer()
    asked = world.put(claim("c", [2, 3]))
    first = await preparer.prepare(*asked)
    count, began = world.asked, now()
    world.machine = without(machine(), {"2"})  # lost meanwhile: the pod may run on without it
    world.trouble = [Unreachable("no route")] * 100
    assert await preparer.prepare(*asked) == first
    assert (world.asked, now() - began) == (count, 0.0)


async def test_another_instance_answers_what_it_finds_once_it_knows_that_it_still_holds(world: World) -> None:
    asked = world.put(claim("c", [2, 3]))
    first = await world.preparer().prepare(*asked)
    world.machine = without(machine(), {"2"})
    other, count = world.preparer(), world.asked
    assert [await other.prepare(*asked) for _ in range(3)] == [first] * 3
    assert world.asked == count + 1
    world.trouble = [Unreachable("no route")]
    assert await world.preparer().prepare(*asked) == first


async def test_another_instance_waits_two_seconds_for_an_api_server_that_hangs(world: World) -> None:
    async def never(*_: str) -> ResourceClaim:
        await asyncio.Event().wait()
        raise AssertionError

    asked = world.put(claim("c", [0]))
    first = await world.preparer().prepare(*asked)
    began = now()
    assert await world.preparer(never).prepare(*asked) == first
    assert now() - began <= 2.5


async def test_a_claim_that_was_allocated_again_gets_its_new_devices(world: World) -> None:
    await world.preparer().prepare(*world.put(claim("c", [0])))
    preparer = world.preparer()
    assert [d.uuid for d in (await preparer.prepare(*world.put(claim("c", [5])))).devices] == [uuid(5)]
    await preparer.prepare(*world.put(claim("other", [0])))
    assert world.checkpoint == ["uid-c.json", "uid-other.json"]


async def test_another_share_of_the_same_gpu_is_another_device(world: World) -> None:
    for share in ("share-1", "share-2"):
        asked = world.put(claim("c", results=[result("gpu", device(0), shareID=share)]))
        told = await world.preparer().prepare(*asked)
        assert [one.share_id for one in told.devices] == [share]


async def test_a_claim_that_is_doubted_is_compared_with_the_api_again(world: World) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("c", [0])))
    preparer.doubt("uid-c")
    assert [d.uuid for d in (await preparer.prepare(*world.put(claim("c", [5])))).devices] == [uuid(5)]


async def test_two_instances_never_change_the_state_at_the_same_time(world: World) -> None:
    asked = world.put(claim("c", [0]))
    async with locked(world.folder / "state" / "serialize.lock"):
        waiting = asyncio.create_task(world.preparer().prepare(*asked))
        await asyncio.sleep(1)
        assert (world.specs, world.checkpoint) == ({}, [])
    await waiting
    assert (len(world.specs), len(world.checkpoint)) == (1, 1)


async def test_a_lock_that_another_process_never_lets_go_is_said(world: World) -> None:
    async with locked(world.folder / "state" / "serialize.lock"):
        with pytest.raises(NotYetError, match=r"serialize\.lock is held by another process"):
            await world.preparer().unprepare("uid-c")


@pytest.mark.parametrize(
    "path",
    [
        "state/claims/uid-c copy.json",
        "state/claims/uid-x.json/",
        "state/claims/uid-x.json.tmp/",
        "state/made/uid-c copy.json",
        "state/files/lost+found/",
        "state/files/note",
        "state/files/uid-x/folder/",
        "cdi/gpu.topology-claim_uid-x.json/",
        "cdi/gpu.topology-claim_uid-x.json.tmp/",
    ],
)
async def test_one_odd_file_keeps_no_claim_from_its_work(world: World, path: str) -> None:
    await world.preparer().prepare(*world.put(claim("c", [0])))
    odd = world.folder / path
    odd.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith("/"):
        odd.mkdir()
    else:
        odd.write_bytes(b"{}")
    preparer = world.preparer()
    for _ in range(2):
        await preparer.recover()
    assert (await preparer.prepare(*world.put(claim("d", [1])))).devices
    assert list(await preparer.prepared()) == ["uid-c", "uid-d"]
    for uid in ("uid-c", "uid-d"):
        await preparer.unprepare(uid)
    assert await preparer.prepared() == {}
