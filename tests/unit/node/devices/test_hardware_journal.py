"""What the ledgers have of parts that were made: typed where it is read, and on disk as it always was."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.node.claims.checkpoint import Checkpoint
from dradriver.node.devices.hardware_journal import HardwareJournal, Made
from dradriver.node.devices.part_records import MigInstance, MigPlace, MpsServed, MpsShare
from dradriver.node.mps.mps_files import Server

PLACE: dict[str, Any] = {"profile": 9, "name": "3g.40gb", "start": 4}
INSTANCE: dict[str, Any] = {"instance": 1, "compute": 0, "mig": "MIG-1", "minor": 0}
EQUAL: dict[str, Any] = {"memory_mib": 8192, "thread_percentage": 25}

KNOWN: dict[str, tuple[str, dict[str, Any], dict[str, Any], Any, Any]] = {
    "made": ("mig", PLACE, INSTANCE, MigPlace(**PLACE), MigInstance(**INSTANCE)),
    "found": ("mig", PLACE | {"found": True}, INSTANCE, MigPlace(**PLACE, found=True), MigInstance(**INSTANCE)),
    "equal": ("mps", {"equal": EQUAL, "mode": 0}, {}, MpsShare(equal=Server(**EQUAL), mode=0), MpsServed()),
    "own": ("mps", EQUAL | {"mode": 3}, {}, MpsShare(**EQUAL, mode=3), MpsServed()),
    "before modes": ("mps", EQUAL, {}, MpsShare(**EQUAL), MpsServed()),
    "a later kind's": ("later", {"x": [1]}, {"y": {}}, {"x": [1]}, {"y": {}}),
}


def put(folder: Path, key: str, entry: dict[str, Any], version: int) -> bytes:
    body = msgspec.json.encode(entry)
    file = {"version": version, "checksum": hashlib.sha256(body).hexdigest(), "entry": msgspec.Raw(body)}
    folder.mkdir(exist_ok=True)
    (folder / f"{key}.json").write_bytes(msgspec.json.encode(file))
    return (folder / f"{key}.json").read_bytes()


def change(number: int = 0, **more: Any) -> dict[str, Any]:
    return {"owner": "u", "number": number, "boot": "b", "driver": "1"} | more


@pytest.mark.parametrize("name", KNOWN)
def test_an_entry_has_its_kinds_records_and_is_written_as_it_was(tmp_path: Path, name: str) -> None:
    kind, wanted, done, record, made = KNOWN[name]
    text = put(tmp_path, "u.0", change(kind=kind, device="d", uuid="g", wanted=wanted, done=done), 1)
    journal = HardwareJournal(tmp_path)
    entry = journal.read()["u.0"].value
    assert (entry.wanted, entry.done, entry.was) == (record, made, None)
    journal.write(entry)
    assert (tmp_path / "u.0.json").read_bytes() == text


@pytest.mark.parametrize("name", KNOWN)
def test_an_entry_to_undo_says_what_was_made_where_there_is_something_to_say(tmp_path: Path, name: str) -> None:
    kind, wanted, done, _, made = KNOWN[name]
    put(tmp_path, "u.0", change(kind=kind, device="d", uuid="g", wanted=wanted, done=done), 1)
    journal = HardwareJournal(tmp_path)
    journal.write(journal.read()["u.0"].value.to_undo())
    said = {"was": done} if done else {}
    expected = change(kind=kind, device="d", uuid="g", wanted=wanted) | said
    assert msgspec.json.decode((tmp_path / "u.0.json").read_bytes())["entry"] == expected
    again = HardwareJournal(tmp_path).read()["u.0"].value
    assert (again.done, again.was, again.noted) == ((None, made, made) if done else (None, None, None))


@pytest.mark.parametrize(
    "damage", [{"wanted": {"profile": "x"}}, {"wanted": None}, {"done": {"instance": 1}}, {"was": [1]}]
)
def test_records_that_no_agent_wrote_are_put_away_one_by_one(tmp_path: Path, damage: dict[str, Any]) -> None:
    whole = change(kind="mig", device="d", uuid="g", wanted=PLACE, done=INSTANCE)
    put(tmp_path, "u.0", whole | damage, 1)
    put(tmp_path, "u.1", whole | {"number": 1}, 1)
    known: list[str] = []

    def again(key: str) -> Made | None:
        known.append(key)
        return None

    journal = HardwareJournal(tmp_path, again)
    assert (list(journal.read()), journal.unreadable_keys()) == (["u.1"], {"u.0"})
    assert known == ["u.0"]


def test_a_claims_own_copy_is_typed_too_and_a_damaged_one_is_no_others_loss(tmp_path: Path) -> None:
    def claim(uid: str, **more: Any) -> bytes:
        device = {"request": "r", "pool": "n", "device": "d", "uuid": "g", "made": f"{uid}.0", **more, "driver": "1"}
        entry = {"uid": uid, "namespace": "ns", "name": "c", "boot": "b", "devices": [device | {"part": "mig"}]}
        return put(tmp_path, uid, entry, 3)

    text = claim("u-1", wanted=PLACE, done=INSTANCE)
    claim("u-2", wanted=PLACE, done={"instance": "one"})
    claim("u-3")  # by an agent that kept no copy
    checkpoint = Checkpoint(tmp_path)
    read = checkpoint.read()
    assert (list(read), checkpoint.unreadable_keys()) == (["u-1", "u-3"], {"u-2"})
    (device,) = read["u-1"].value.devices
    assert (device.wanted, device.done) == (MigPlace(**PLACE), MigInstance(**INSTANCE))
    checkpoint.write(read["u-1"].value)
    assert (tmp_path / "u-1.json").read_bytes() == text
    assert [(one.wanted, one.done) for one in read["u-3"].value.devices] == [(None, None)]
