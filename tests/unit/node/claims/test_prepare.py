"""Preparing and unpreparing; the traps of a real kubelet that can be seen without one. Time is looptime's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.errors import DriverError
from dradriver.kube.errors import ApiError, Unreachable
from dradriver.node import atomic_files, selinux
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.prepare import BUDGET_S
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.errors import ClaimError, DeviceBusyError, DeviceMissingError, NotYetError
from tests.fakes.node import NODE, claim, device, machine, parameters, result, uuid
from tests.fakes.preparing import World

pytestmark = pytest.mark.looptime


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def paths(prepared: PreparedClaim) -> list[str]:
    return [node.path for device in prepared.devices for node in device.edits.nodes]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_files_are_written_before_the_entry_and_that_before_the_spec_and_removed_the_other_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, str]] = []
    write, remove = atomic_files.write, atomic_files.remove

    def note_write(path: Path, data: bytes, **how: Any) -> None:
        steps.append(("write", path.parent.name))
        write(path, data, **how)

    def note_remove(path: Path, **how: Any) -> None:
        steps.append(("remove", path.parent.name))
        remove(path, **how)

    monkeypatch.setattr(atomic_files, "write", note_write)
    monkeypatch.setattr(atomic_files, "remove", note_remove)
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("c", [0])))
    await preparer.unprepare("uid-c")
    assert steps == [
        *[("write", folder) for folder in ("uid-c", "claims", "cdi")],
        *[("remove", folder) for folder in ("cdi", "claims", "uid-c")],
    ]


async def test_all_files_that_a_container_reads_are_labelled_where_selinux_is_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled: dict[str, bytes] = {}
    monkeypatch.setattr(selinux, "_ON", tmp_path)
    monkeypatch.setattr(os, "setxattr", lambda path, name, value, **_: labelled.update({f"{path} {name}": value}))
    prepared = await world.preparer().prepare(*world.put(claim("c", [0, 1], config=[parameters(nccl="file")])))
    mounted = {mount.host_path for device in prepared.devices for mount in device.edits.mounts}
    assert len(mounted) > 1
    assert labelled == {f"{path} security.selinux": selinux.CONTEXT.encode() + b"\0" for path in mounted}


async def test_trap_1_what_can_come_right_by_itself_is_retried_inside_the_call(world: World) -> None:
    asked = world.put(claim("c", [0]))
    world.trouble = [
        Unreachable("no route"),
        ApiError(500, "InternalError", "etcd leader changed"),
        ApiError(429, "TooManyRequests", "later"),
        ApiError(403, "Forbidden", "the role is not bound yet"),
        ApiError(404, "NotFound", "a lagging server"),
    ]
    assert (await world.preparer().prepare(*asked)).devices
    assert now() < 10


async def test_trap_1_a_full_disk_is_retried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, left = os.replace, [3]

    def full(*paths: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        replace(*paths)

    monkeypatch.setattr(os, "replace", full)
    assert (await world.preparer().prepare(*world.put(claim("c", [0])))).devices
    assert (len(world.specs), len(world.checkpoint)) == (1, 1)


async def test_trap_1_so_is_one_that_does_not_let_go_of_what_the_claim_had_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.preparer().prepare(*world.put(claim("c", [0])))
    asked = world.put(claim("c", [1]))
    unlink, left = os.unlink, [3]

    def read_only(*paths: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(30, "Read-only file system")
        unlink(*paths)

    monkeypatch.setattr(os, "unlink", read_only)
    assert [d.device for d in (await world.preparer().prepare(*asked)).devices] == [device(1)]


async def test_trouble_that_lasts_is_told_before_the_kubelet_gives_up(world: World) -> None:
    async def never(*_: str) -> ResourceClaim:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(NotYetError, match="claim default/c cannot be read: no answer from the API server"):
        await world.preparer(never).prepare("default", "c", "uid-c")
    assert BUDGET_S <= now() <= BUDGET_S + 1


async def test_a_claim_that_does_not_exist_is_given_up_sooner(world: World) -> None:
    with pytest.raises(NotYetError, match="claim default/none does not exist"):
        await world.preparer().prepare("default", "none", "uid-none")
    assert now() < 10
    assert world.asked > 1


async def test_another_claim_of_the_same_name_is_refused_at_once(world: World) -> None:
    world.put(claim("c", [0], uid="new"))
    with pytest.raises(ClaimError, match="default/c was deleted and created again: its uid is new, not old"):
        await world.preparer().prepare("default", "c", "old")
    assert (world.asked, world.checkpoint, world.specs) == (1, [], {})


async def test_a_bad_configuration_is_refused_at_once(world: World) -> None:
    config = parameters()
    config["opaque"]["parameters"]["kind"] = "GpuConfig"
    asked = world.put(claim("c", [0], config=[config]))
    with pytest.raises(DriverError, match="GpuConfig"):
        await world.preparer().prepare(*asked)
    assert (world.asked, world.checkpoint, world.specs) == (1, [], {})


async def test_a_claim_without_devices_of_ours_leaves_nothing(world: World) -> None:
    assert (await world.preparer().prepare(*world.put(claim("c", results=[])))).devices == ()
    assert (world.checkpoint, world.specs) == ([], {})


async def test_trap_2_a_call_the_kubelet_gave_up_is_undone_or_done(world: World) -> None:
    asked = world.put(claim("c", [0]))
    preparer = world.preparer()
    for delay in (0.0, 0.001, 0.002, 0.003):
        task = asyncio.create_task(preparer.prepare(*asked))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        assert len(world.specs) == len(world.checkpoint) == (0 if task.cancelled() else 1)
        assert (await preparer.prepare(*asked)).uid == asked[2]
        await preparer.unprepare(asked[2])
        assert (world.specs, world.checkpoint) == ({}, [])


async def test_trap_2_a_call_that_is_given_up_while_it_waits_lets_go_of_everything(world: World) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("old", [0])))
    waiting = asyncio.create_task(preparer.prepare(*world.put(claim("new", [0]))))
    await asyncio.sleep(5)
    waiting.cancel()
    await asyncio.wait([waiting])
    await preparer.unprepare("uid-old")
    assert (world.specs, world.checkpoint) == ({}, [])


async def test_trap_3_a_new_claim_waits_for_the_old_ones_unprepare(world: World) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("old", [0, 1])))
    waiting = asyncio.create_task(preparer.prepare(*world.put(claim("new", [1, 2]))))
    await asyncio.sleep(3.5)
    assert not waiting.done()
    assert world.checkpoint == ["uid-old.json"]
    await preparer.unprepare("uid-old")
    began = now()
    assert [d.uuid for d in (await waiting).devices] == [uuid(1), uuid(2)]
    assert now() - began < 0.5  # woken, not polled
    assert world.checkpoint == ["uid-new.json"]


async def test_trap_10_a_device_that_another_instance_gave_back_is_noticed(world: World) -> None:
    preparer, older = world.preparer(), world.preparer()
    await older.prepare(*world.put(claim("old", [0])))
    waiting = asyncio.create_task(preparer.prepare(*world.put(claim("new", [0]))))
    await asyncio.sleep(3)
    await older.unprepare("uid-old")
    assert (await waiting).uid == "uid-new"


async def test_a_device_that_stays_taken_is_refused_with_its_owners_name(world: World) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("old", [0, 1])))
    with pytest.raises(DeviceBusyError, match=rf"GPU {device(1)} is still held by claim default/old \(uid uid-old\)"):
        await preparer.prepare(*world.put(claim("new", [1])))
    assert BUDGET_S <= now() < 45
    assert world.checkpoint == ["uid-old.json"]


async def test_of_two_claims_that_wait_for_one_gpu_one_gets_it(world: World) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("old", [0])))
    waiting = [asyncio.create_task(preparer.prepare(*world.put(claim(name, [0])))) for name in ("x", "y")]
    await asyncio.sleep(2)
    await preparer.unprepare("uid-old")
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(one) for one in done} == {PreparedClaim, DeviceBusyError}
    assert len(world.checkpoint) == len(world.specs) == 1


async def test_claims_of_different_gpus_do_not_wait_for_each_other(world: World) -> None:
    preparer = world.preparer()
    asked = [world.put(claim(f"c{i}", [i])) for i in range(8)]
    await asyncio.gather(*(preparer.prepare(*one) for one in asked))
    assert now() < 1
    assert len(world.specs) == len(world.checkpoint) == 8


async def test_shares_and_lookers_on_are_prepared_next_to_an_owner(world: World) -> None:
    preparer = world.preparer()
    for number in range(2):
        share = {"shareID": f"share-{number}", "consumedCapacity": {"cores": "25", "memory": "4Gi"}}
        one = claim(f"s{number}", results=[result("gpu", device(0), **share)])
        await preparer.prepare(*world.put(one))
    with pytest.raises(DeviceBusyError):
        await preparer.prepare(*world.put(claim("whole", [0])))
    await preparer.prepare(*world.put(claim("admin", results=[result("gpu", device(0), adminAccess=True)])))
    assert len(world.specs) == 3


async def test_trap_4_unprepare_needs_the_uid_alone_and_forgives_the_unknown(world: World) -> None:
    preparer = world.preparer()
    await preparer.unprepare("never-prepared")
    await preparer.prepare(*world.put(claim("c", [0])))
    world.claims.clear()
    asked = world.asked
    await world.preparer().unprepare("uid-c")
    await preparer.unprepare("uid-c")
    assert (world.specs, world.checkpoint, world.asked) == ({}, [], asked)


async def test_a_gpu_that_comes_back_during_the_call_is_waited_for(world: World) -> None:
    preparer = world.preparer()
    world.machine = without(machine(), {"2"})
    waiting = asyncio.create_task(preparer.prepare(*world.put(claim("c", [2, 3]))))
    await asyncio.sleep(7.3)
    assert not waiting.done()
    assert (world.specs, world.checkpoint) == ({}, [])
    world.machine = machine()
    preparer.poke()
    began = now()
    assert paths(await waiting) == ["/dev/nvidia2", "/dev/nvidia3"]
    assert now() - began < 0.5


async def test_a_gpu_that_stays_lost_is_said(world: World) -> None:
    world.machine = without(machine(), {"2"})
    with pytest.raises(DeviceMissingError, match=f"GPU {device(2)} is not on node {NODE} now"):
        await world.preparer().prepare(*world.put(claim("c", [2])))
    assert BUDGET_S <= now() < 45


async def test_a_gpu_that_vanished_and_came_back_has_still_one_owner(world: World) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("old", [3])))
    world.machine = without(machine(), {"2"})  # indices shift: GPU 3 is number 2 now
    preparer.poke()
    with pytest.raises(DeviceBusyError):
        await preparer.prepare(*world.put(claim("same", results=[result("gpu", device(3))])))
    world.machine = machine()
    assert paths(await preparer.prepare(*world.put(claim("other", [2])))) == ["/dev/nvidia2"]


@pytest.mark.parametrize("uid", ["", "../../etc/x", "a/b"])
async def test_an_invalid_uid_touches_no_file(world: World, uid: str) -> None:
    with pytest.raises(ClaimError, match="claim uid"):
        await world.preparer().prepare("default", "c", uid)
    with pytest.raises(ClaimError, match="claim uid"):
        await world.preparer().unprepare(uid)
    assert list(world.folder.rglob("*.json*")) == []


async def test_a_spec_that_cannot_be_removed_keeps_the_claim_prepared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("c", [0])))

    def refuse(_: Path) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(ClaimError, match="Read-only file system"):
            await preparer.unprepare("uid-c")
    assert (len(world.specs), world.checkpoint) == (1, ["uid-c.json"])
    await preparer.unprepare("uid-c")
    assert (world.specs, world.checkpoint) == ({}, [])


SEAT = result("seat", gang_barrier_device.DEVICE, pool=names.SEAT_POOL, shareID="s-1")


async def test_a_seat_is_prepared_with_its_claims_gpus_and_gives_nothing(world: World) -> None:
    known = world.put(claim("c", results=[SEAT, result("main", device(3))]))
    prepared = await world.preparer().prepare(*known)
    assert [(one.request, one.device) for one in prepared.devices] == [("main", device(3))]
    again = world.preparer()  # the agent starts anew
    assert await again.prepare(*known) == prepared
    await again.unprepare("uid-c")
    assert await again.prepared() == {}


async def test_a_seat_alone_is_prepared_and_leaves_nothing(world: World) -> None:
    preparer = world.preparer()
    assert (await preparer.prepare(*world.put(claim("c", results=[SEAT])))).devices == ()
    assert await preparer.prepared() == {}
    await preparer.unprepare("uid-c")
