"""What was made and whose entry is damaged, or whose agent was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.node import atomic_files
from dradriver.node.errors import ClaimError, DeviceBusyError
from tests.fakes.making import Sliced, env, left_by_a_kill, patient
from tests.fakes.node import claim, uuid


@pytest.fixture
def world(tmp_path: Path) -> Sliced:
    return Sliced(tmp_path)


async def test_what_was_made_for_a_claim_whose_entry_is_damaged_stays(world: Sliced) -> None:
    await world.preparer().prepare(*world.halves("c", (0, 0)))
    (world.folder / "state" / "claims" / "uid-c.json").write_text("damaged")
    preparer = world.preparer()
    await preparer.recover()
    await preparer.clean()
    assert world.instances == {0: [0]}
    await preparer.unprepare("uid-c")
    assert world.nothing()


async def test_an_entry_of_what_was_made_that_is_damaged_is_written_again_from_the_claims(world: Sliced) -> None:
    asked = world.halves("c", (0, 0), (0, 4))
    done = await world.preparer().prepare(*asked)
    before = world.made
    for key in before:
        (world.folder / "state" / "made" / f"{key}.json").write_text("damaged")
    preparer = world.preparer()
    await preparer.recover()
    assert (world.made, len(world.specs)) == (before, 1)
    assert await preparer.prepare(*asked) == done
    await preparer.unprepare("uid-c")
    assert world.nothing()
    assert list((world.folder / "state" / "made").iterdir()) == []


async def test_an_entry_that_was_put_away_and_not_yet_written_again_still_is(world: Sliced) -> None:
    await world.preparer().prepare(*world.halves("c", (0, 0)))
    entry = world.folder / "state" / "made" / "uid-c.0.json"
    entry.rename(f"{entry}.corrupt-1")
    await world.preparer().unprepare("uid-c")
    assert world.nothing()


async def test_of_a_claim_that_is_being_given_back_it_is_an_intent(world: Sliced) -> None:
    await world.preparer().prepare(*world.halves("c", (0, 0)))
    with world.gpus.state(uuid(0)) as state:
        state.users = {4711: (world.made["uid-c.0"].done or {})["mig"]}
    with pytest.raises(ClaimError, match="cannot be undone"):
        await world.preparer().unprepare("uid-c")
    (world.folder / "state" / "made" / "uid-c.0.json").write_text("damaged")
    await world.preparer().recover()
    assert (world.made["uid-c.0"].done, world.specs) == (None, {})


async def test_what_was_undone_already_is_not_written_again(world: Sliced) -> None:
    await world.preparer().prepare(*world.halves("c", (0, 0)))
    (world.folder / "state" / "made" / "uid-c.0.json").unlink()  # as a kill in the midst of unprepare leaves it
    await world.preparer().recover()
    assert (world.made, world.specs) == ({}, {})


async def test_a_damaged_entry_of_no_claim_has_no_effect(world: Sliced) -> None:
    await world.preparer().prepare(*world.halves("c", (0, 0)))
    for name in ("nobodys.json", "uid-d.0.json", "uid-c.7.json"):
        (world.folder / "state" / "made" / name).write_text("damaged")
    await world.preparer().recover()
    await world.preparer().unprepare("uid-c")
    assert world.nothing()


async def test_nor_is_an_entry_that_a_newer_agent_next_to_this_one_just_wrote(world: Sliced) -> None:
    preparer = world.preparer()
    await preparer.prepare(*world.halves("c", (0, 0)))
    entry = world.folder / "state" / "made" / "uid-c.0.json"
    entry.write_text(newer := entry.read_text().replace('"version":1', '"version":2'))
    await preparer.recover()
    assert [path.read_text() for path in entry.parent.iterdir()] == [newer]


async def test_nor_is_what_another_boot_made(world: Sliced) -> None:
    await world.preparer().prepare(*world.halves("c", (0, 0)))
    (world.folder / "state" / "made" / "uid-c.0.json").write_text("damaged")
    world.boot = "boot-2"
    await world.preparer().recover()
    assert world.made == {}


@pytest.mark.parametrize("done", [True, False])
async def test_what_a_killed_agent_made_for_no_claim_is_undone_at_the_next_start(world: Sliced, done: bool) -> None:
    await left_by_a_kill(world, boot=world.boot, done=done)
    with pytest.raises(DeviceBusyError, match="an unfinished hardware change"):
        await patient(world).prepare(*world.halves("other", (0, 4)))
    await world.preparer().recover()
    assert list(world.made) == ["uid-c.0"]  # the start of an agent waits for no driver
    await world.preparer().clean()
    assert world.nothing()


@pytest.mark.parametrize("done", [True, False])
async def test_the_claim_itself_is_made_again_over_it(world: Sliced, done: bool) -> None:
    await left_by_a_kill(world, boot=world.boot, done=done)
    assert env(await patient(world).prepare(*world.halves("c", (0, 4))))
    assert world.instances == {0: [4]}


async def test_after_a_reboot_what_was_made_is_forgotten_and_made_again(world: Sliced) -> None:
    asked = world.halves("c", (0, 4))
    await world.preparer().prepare(*world.put(claim("whole", [5])))
    await world.preparer().prepare(*asked)
    world.gpus.reboot()
    with world.gpus.state(uuid(0)) as state:
        state.mig = True
    world.boot = "boot-2"
    preparer = world.preparer()
    await preparer.recover()
    assert (world.made, world.checkpoint) == ({}, ["uid-c.json", "uid-whole.json"])
    assert list(world.specs) == ["gpu.topology-claim_uid-whole.json"]
    assert env(await preparer.prepare(*asked))
    assert (world.instances, world.made["uid-c.0"].boot) == ({0: [4]}, "boot-2")
    await preparer.unprepare("uid-c")
    assert world.instances == {}


async def test_on_a_full_disk_a_claim_is_given_back_and_its_instance_undone(
    world: Sliced, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.preparer().prepare(*world.halves("c", (0, 0), (1, 4)))

    write = atomic_files.write

    def full(path: Path, data: bytes) -> None:
        if path.is_relative_to(world.folder / "state"):
            raise OSError(28, "No space left on device", str(path))
        write(path, data)

    monkeypatch.setattr(atomic_files, "write", full)
    with world.gpus.state(uuid(0)) as state:  # a process stays on the first
        state.users = {4711: (world.made["uid-c.0"].done or {})["mig"]}
    with pytest.raises(ClaimError, match="cannot be undone"):
        await world.preparer().unprepare("uid-c")
    assert world.instances == {0: [0]}
    with world.gpus.state(uuid(0)) as state:
        state.users = {}
    await world.preparer().unprepare("uid-c")
    assert world.nothing()
