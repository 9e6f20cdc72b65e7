"""Claims whose entries cannot be read: what they hold stays theirs, and is given back when they are gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dradriver.node.claims import cdi
from dradriver.node.errors import DeviceBusyError, OccupiedError
from tests.fakes.node import claim, device, result, uuid
from tests.fakes.preparing import World
from tests.fakes.reconciling import passes, reconciler
from tests.fakes.slicing import QUARTER, Sliced, some


@pytest.fixture
def world(tmp_path: Path) -> Sliced:
    return Sliced(tmp_path)


def damage(world: World, name: str, *, newer: bool = False) -> None:
    path = world.folder / "state" / "claims" / f"uid-{name}.json"
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":4') if newer else b"damaged")
    os.utime(path, (1, 1))


def share(gpu: int, name: str) -> Any:
    return result("gpu", device(gpu), shareID=name, **QUARTER)


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize("kind", ["mig", "share"])
async def test_a_gpu_of_one_namespace_at_a_time_stays_that(world: Sliced, newer: bool, kind: str) -> None:
    world.exclusive = {uuid(0), uuid(1)}
    asked = {"mig": lambda gpu, name: some(gpu, 1, 1, name), "share": share}[kind]
    await world.prepare("a", asked(0, "s1"))
    damage(world, "a", newer=newer)
    preparer = world.preparer()
    preparer._budget_s = 0.0
    for gpu in (0, 1):
        other = claim(f"b{gpu}", results=[asked(gpu, "s2")])
        other["metadata"]["namespace"] = "other"
        await reconciler(world).once()
        if gpu == 1:
            assert (await preparer.prepare(*world.put(other))).devices
            continue
        with pytest.raises(DeviceBusyError, match="belong to one namespace at a time"):
            await preparer.prepare(*world.put(other))


async def test_of_a_claim_that_is_gone_nothing_stays_after_two_passes(world: Sliced) -> None:
    await world.prepare("c", some(0, 4, 3, "s1"))
    await world.prepare("d", some(1, 1, 1, "s2"))
    for name in "cd":
        damage(world, name)
    del world.claims["c"]
    one = reconciler(world)
    await one.once()
    assert (len(world.specs), len(world.made), len(world.checkpoint)) == (2, 2, 2)
    await passes(one, 3)
    assert (len(world.specs), list(world.made), world.placed(0)) == (1, ["uid-d.0"], [])
    assert [name.partition(".")[0] for name in world.checkpoint] == ["uid-d"]


async def test_processes_keep_first_shares_off_other_gpus_and_no_later_one_off_its_own(world: Sliced) -> None:
    await world.prepare("c", share(0, "s1"))
    damage(world, "c")
    world.processes = {uuid(0): [11], uuid(1): [4711]}
    assert (await world.prepare("later", share(0, "s2"))).devices
    with pytest.raises(OccupiedError):
        await world.prepare("first", share(1, "s3"))


async def test_a_folder_in_a_specs_place_goes_and_one_that_cannot_be_written_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    for gpu, name in enumerate("abc"):
        await world.preparer().prepare(*world.put(claim(name, [gpu])))
    before = world.specs
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    (tmp_path / "cdi" / "gpu.topology-claim_uid-a.json").mkdir()
    one = reconciler(world)
    await one.once()
    assert world.specs == before
    write = cdi.CdiFolder.write

    def immutable(self: cdi.CdiFolder, prepared: Any) -> None:
        if prepared.uid == "uid-a":
            raise OSError(1, "Operation not permitted")
        write(self, prepared)

    monkeypatch.setattr(cdi.CdiFolder, "write", immutable)
    (tmp_path / "cdi" / "gpu.topology-claim_uid-c.json").unlink()
    del world.claims["b"]
    for _ in range(2):
        with pytest.raises(OSError, match="not permitted"):
            await one.once()
    assert world.checkpoint == ["uid-a.json", "uid-c.json"]
    assert world.specs == {name: text for name, text in before.items() if "uid-b" not in name}


async def test_a_newer_file_on_a_bad_sector_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    for gpu, name in enumerate("ab"):
        await world.preparer().prepare(*world.put(claim(name, [gpu])))
    damage(world, "a", newer=True)
    read = Path.read_bytes

    def bad(path: Path) -> bytes:
        if ".newer-" in path.name:
            raise OSError(5, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", bad)
    del world.claims["b"]
    await passes(reconciler(world), 2)
    assert [name.partition(".")[0] for name in world.checkpoint] == ["uid-a"]
