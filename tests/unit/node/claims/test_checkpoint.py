from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dradriver.node import metrics
from dradriver.node.claims import cdi
from dradriver.node.claims.checkpoint import VERSION, Checkpoint, PreparedClaim, PreparedDevice
from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.errors import ClaimError

EDITS = Edits(nodes=(DeviceNode("/dev/nvidia0", "/dev/null"),), env=("A=1",))


def prepared(
    uid: str = "u-1", gpu: str = "GPU-a", share: str | None = None, *, part: str = "", admin: bool = False
) -> PreparedClaim:
    device = PreparedDevice(
        request="r", pool="n", device=gpu.lower(), uuid=gpu, edits=EDITS, part=part, share_id=share, admin=admin
    )
    return PreparedClaim(uid=uid, namespace="ns", name="c", devices=(device,))


def test_what_is_written_is_read_again_by_another_instance(tmp_path: Path) -> None:
    Checkpoint(tmp_path).write(prepared("u-2"))
    Checkpoint(tmp_path).write(prepared("u-1"))
    read = Checkpoint(tmp_path).read()
    assert list(read) == ["u-1", "u-2"]
    assert read["u-2"].value == prepared("u-2")


def test_writing_the_same_again_gives_another_stamp(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared())
    before = checkpoint.read()["u-1"].stamp
    checkpoint.write(prepared())
    assert checkpoint.read()["u-1"].stamp != before


def test_a_folder_that_is_not_there_holds_no_claims(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "none")
    assert (checkpoint.read(), checkpoint.unreadable_keys()) == ({}, set())
    checkpoint.remove("u-1")
    checkpoint.sweep()


def damages() -> list[bytes]:
    whole = msgspec.json.encode({"version": VERSION, "checksum": "0" * 64, "entry": {}})
    return [b"", whole[:-5], b"\x00" * 40, b"[]", whole, b'{"version": 1}', b'{"version": 0}', b"\xff\xfe"]


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_is_put_away_and_its_neighbours_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared("u-1"))
    checkpoint.write(prepared("u-2"))
    (tmp_path / "u-1.json").write_bytes(damage)
    count = metrics.CHECKPOINT_CORRUPT._value.get()
    assert list(checkpoint.read()) == ["u-2"]
    assert checkpoint.unreadable_keys() == {"u-1"}
    assert [p.read_bytes() for p in tmp_path.glob("u-1.json.corrupt-*")] == [damage]
    assert metrics.CHECKPOINT_CORRUPT._value.get() == count + 1
    assert caplog.records[0].levelno == logging.ERROR
    checkpoint.remove("u-1")
    assert [p.name for p in tmp_path.iterdir()] == ["u-2.json"]


def directory(path: Path) -> None:
    path.mkdir()


def ring(path: Path) -> None:
    path.symlink_to(path)


def bad_sector(path: Path) -> None:
    path.symlink_to("/proc/self/mem")  # its first byte gives EIO


@pytest.mark.parametrize("make", [directory, ring, bad_sector])
def test_what_cannot_be_read_as_a_file_is_put_away_too(tmp_path: Path, make: Callable[[Path], None]) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared("u-2"))
    make(tmp_path / "u-1.json")
    assert list(checkpoint.read()) == ["u-2"]
    assert checkpoint.unreadable_keys() == {"u-1"}
    checkpoint.remove("u-1")
    assert [p.name for p in tmp_path.iterdir()] == ["u-2.json"]


def test_without_descriptors_it_is_unknown_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Checkpoint(tmp_path).write(prepared("u-1"))

    def too_many(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", too_many)
    with pytest.raises(OSError, match="Too many open files"):
        Checkpoint(tmp_path).read()
    assert [p.name for p in tmp_path.iterdir()] == ["u-1.json"]


@pytest.mark.parametrize(
    "name", ["u-1 copy.json", "u_1.json", "._u-1.json", "x_y.json.bak-1", "x_y.json.newer-3", "x_y.json.newer-9"]
)
def test_a_file_of_no_program_disturbs_no_program(tmp_path: Path, name: str) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared("u-1"))
    (tmp_path / name).write_bytes((tmp_path / "u-1.json").read_bytes())
    checkpoint.sweep()
    assert list(checkpoint.read()) == ["u-1"]
    assert (checkpoint.unreadable_keys(), checkpoint.newer()) == (set(), {})
    assert (tmp_path / name).exists()


def test_a_version_that_no_file_name_can_hold_is_damage(tmp_path: Path) -> None:
    (tmp_path / "u-1.json").write_bytes(b'{"version": 1%s}' % (b"0" * 400))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.read() == {}
    assert len(list(tmp_path.glob("u-1.json.corrupt-*"))) == 1


def test_a_flipped_bit_and_a_renamed_file_are_damage(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared("u-1"))
    text = (tmp_path / "u-1.json").read_bytes()
    (tmp_path / "u-2.json").write_bytes(text)
    (tmp_path / "u-1.json").write_bytes(text.replace(b"nvidia0", b"nvidia1"))
    assert checkpoint.read() == {}
    assert checkpoint.unreadable_keys() == {"u-1", "u-2"}


@pytest.mark.parametrize("version", [1, 2])
def test_what_an_older_agent_wrote_gives_the_same_spec(tmp_path: Path, version: int) -> None:
    old = {"request": "r", "pool": "n", "device": "gpu-a", "uuid": "GPU-a", "path": "/dev/nvidia0"}
    devices = [
        old | {"host_path": "/dev/null"},
        old | {"device": "gpu-b", "host_path": "", "cdi": ["nvidia.com/gpu=b"]},
    ]
    claim = {"uid": "u-1", "namespace": "ns", "name": "c", "devices": devices, "env": {"r": ["A=1"]}}
    body = msgspec.json.encode(claim)
    file = {"version": version, "checksum": hashlib.sha256(body).hexdigest(), "claim": msgspec.Raw(body)}
    (tmp_path / "u-1.json").write_bytes(msgspec.json.encode(file))
    read = Checkpoint(tmp_path).read()["u-1"].value
    assert [device.edits for device in read.devices] == [EDITS, Edits(cdi=("nvidia.com/gpu=b",))]
    assert [cdi.device_ids(read, device) for device in read.devices] == [
        ["gpu.topology/claim=u-1-r-gpu-a"],
        ["nvidia.com/gpu=b"],
    ]


def newer(path: Path, *, version: int = 9, written_s: float = -60) -> bytes:
    text = re.sub(rb'"version":\d+', b'"version":%d' % version, path.read_bytes(), count=1)
    path.write_bytes(text)
    os.utime(path, (time.time() + written_s,) * 2)
    return text


def test_a_newer_agents_file_is_put_away_and_disturbs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared("u-1"))
    checkpoint.write(prepared("u-2"))
    text = newer(tmp_path / "u-1.json")
    checkpoint = Checkpoint(tmp_path)
    count = metrics.CHECKPOINT_NEWER._value.get()
    assert list(checkpoint.read()) == ["u-2"]
    assert metrics.CHECKPOINT_NEWER._value.get() == count + 1
    assert "of version 9, newer than 3. The node agent renamed it to u-1.json.newer-9" in caplog.text
    assert (checkpoint.unreadable_keys(), checkpoint.newer()) == ({"u-1"}, {"u-1": text})
    checkpoint.sweep()
    checkpoint.remove("u-2")
    assert checkpoint.unreadable_keys() == {"u-1"}
    checkpoint.remove("u-1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("written_s", [-86_400, -60, 0, 60, 86_400])
def test_what_a_newer_agent_writes_next_to_this_one_is_left_alone_at_any_time(tmp_path: Path, written_s: float) -> None:
    Checkpoint(tmp_path).write(prepared("u-1"))
    checkpoint = Checkpoint(tmp_path)
    for version in (9, 10):
        newer(tmp_path / "u-1.json", version=version, written_s=written_s)
        assert (list(checkpoint.read()), checkpoint.unreadable_keys(), checkpoint.foreign("u-1")) == ([], {"u-1"}, True)
        checkpoint.sweep()
        assert [path.name for path in tmp_path.iterdir()] == ["u-1.json"]
    later = Checkpoint(tmp_path)  # after a rollback
    assert (list(later.read()), later.unreadable_keys(), later.foreign("u-1")) == ([], {"u-1"}, False)
    assert [path.name for path in tmp_path.iterdir()] == ["u-1.json.newer-10"]


def test_an_entry_that_was_rebuilt_counts_and_the_newer_one_is_kept_next_to_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared("u-1"))
    newer(tmp_path / "u-1.json")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.read()
    checkpoint.write(prepared("u-1"))
    assert (list(checkpoint.read()), checkpoint.unreadable_keys(), checkpoint.newer()) == (["u-1"], set(), {})


def test_the_newer_agent_that_comes_back_takes_its_own_again(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    for uid in ("u-1", "u-2"):
        checkpoint.write(prepared(uid))
        (tmp_path / f"{uid}.json").rename(tmp_path / f"{uid}.json.newer-{VERSION}")  # as an older one does
    checkpoint.write(prepared("u-2", gpu="GPU-rebuilt"))
    checkpoint.sweep()
    assert {uid: entry.value for uid, entry in checkpoint.read().items()} == {
        "u-1": prepared("u-1"),
        "u-2": prepared("u-2", gpu="GPU-rebuilt"),
    }
    assert sorted(p.name for p in tmp_path.iterdir()) == ["u-1.json", "u-2.json"]


@pytest.mark.parametrize("uid", ["", "../x", "a/b", ".", "a" * 65, "a.b", "ü", "a\n"])
def test_a_uid_that_is_no_file_name_is_refused(tmp_path: Path, uid: str) -> None:
    with pytest.raises(ClaimError, match="claim uid"):
        Checkpoint(tmp_path).write(prepared(uid))
    with pytest.raises(ClaimError, match="claim uid"):
        Checkpoint(tmp_path).remove(uid)


def test_sweep_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared())
    (tmp_path / "u-2.json.tmp").write_bytes(b"half")
    checkpoint.sweep()
    assert [p.name for p in tmp_path.iterdir()] == ["u-1.json"]


def test_one_gpu_has_one_owner_unless_both_hold_parts_of_a_kind_or_one_only_looks_on() -> None:
    def excludes(a: PreparedClaim, b: PreparedClaim) -> bool:
        assert a.devices[0].excludes(b.devices[0]) == b.devices[0].excludes(a.devices[0])
        return a.devices[0].excludes(b.devices[0])

    assert excludes(prepared(), prepared())
    assert not excludes(prepared(), prepared(gpu="GPU-b"))
    part = prepared(share="s", part="share")
    assert excludes(part, prepared())
    assert excludes(part, prepared(share="t"))  # all of a GPU that could be shared
    assert excludes(part, prepared(share="t", part="mps"))
    assert excludes(part, part)
    assert not excludes(part, prepared(share="t", part="share"))
    assert not excludes(prepared(admin=True), prepared())


def test_claims_that_are_gone_leave_nothing_in_memory(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)

    def go(name: str) -> None:
        for number in range(300):
            checkpoint.remove(f"{name}-{number}")

    go("warm")
    tracemalloc.start()
    try:
        go("u")
        assert tracemalloc.get_traced_memory()[0] < 50_000  # a pattern for each would be 300 kB
    finally:
        tracemalloc.stop()
