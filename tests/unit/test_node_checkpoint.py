from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from dradriver.node import metrics
from dradriver.node.claims.checkpoint import Checkpoint, PreparedClaim, PreparedDevice
from dradriver.node.errors import ClaimError, SetupError


def prepared(uid: str = "u-1", gpu: str = "GPU-a", share: str | None = None, *, admin: bool = False) -> PreparedClaim:
    device = PreparedDevice(
        request="r", pool="n", device=gpu.lower(), uuid=gpu, path="/dev/nvidia0", host_path="/dev/null",
        share_id=share, admin=admin,
    )  # fmt: skip
    return PreparedClaim(uid=uid, namespace="ns", name="c", devices=(device,), env={"r": ("A=1",)})


def test_what_is_written_is_read_again_by_another_instance(tmp_path: Path) -> None:
    Checkpoint(tmp_path).write(prepared("u-2"))
    Checkpoint(tmp_path).write(prepared("u-1"))
    read = Checkpoint(tmp_path).read()
    assert list(read) == ["u-1", "u-2"]
    assert read["u-2"].claim == prepared("u-2")


def test_writing_the_same_again_gives_another_stamp(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared())
    before = checkpoint.read()["u-1"].stamp
    checkpoint.write(prepared())
    assert checkpoint.read()["u-1"].stamp != before


def test_a_folder_that_is_not_there_holds_no_claims(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "none")
    assert (checkpoint.read(), checkpoint.kept()) == ({}, set())
    checkpoint.remove("u-1")
    checkpoint.sweep()


def damages() -> list[bytes]:
    whole = msgspec.json.encode({"version": 1, "checksum": "0" * 64, "claim": {}})
    return [b"", whole[:-5], b"\x00" * 40, b"[]", whole, b'{"version": 1}', b"\xff\xfe"]


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_is_set_aside_and_its_neighbours_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared("u-1"))
    checkpoint.write(prepared("u-2"))
    (tmp_path / "u-1.json").write_bytes(damage)
    count = metrics.CHECKPOINT_CORRUPT._value.get()
    assert list(checkpoint.read()) == ["u-2"]
    assert checkpoint.kept() == {"u-1"}
    assert [p.read_bytes() for p in tmp_path.glob("u-1.json.corrupt-*")] == [damage]
    assert metrics.CHECKPOINT_CORRUPT._value.get() == count + 1
    assert caplog.records[0].levelno == logging.ERROR
    checkpoint.remove("u-1")
    assert [p.name for p in tmp_path.iterdir()] == ["u-2.json"]


def test_a_flipped_bit_and_a_renamed_file_are_damage(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared("u-1"))
    text = (tmp_path / "u-1.json").read_bytes()
    (tmp_path / "u-2.json").write_bytes(text)
    (tmp_path / "u-1.json").write_bytes(text.replace(b"nvidia0", b"nvidia1"))
    assert checkpoint.read() == {}
    assert checkpoint.kept() == {"u-1", "u-2"}


def test_what_an_older_agent_would_forget_has_a_version_that_it_refuses(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared())
    assert b'"version":1' in (tmp_path / "u-1.json").read_bytes()
    (device,) = prepared().devices
    real = msgspec.structs.replace(device, host_path="", cdi=("nvidia.com/gpu=GPU-1",))
    claim = msgspec.structs.replace(prepared(), devices=(real,))
    checkpoint.write(claim)
    assert b'"version":2' in (tmp_path / "u-1.json").read_bytes()
    assert checkpoint.read()["u-1"].claim == claim


def test_a_newer_agents_file_is_not_touched_and_stops_this_one(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(prepared())
    path = tmp_path / "u-1.json"
    newer = path.read_bytes().replace(b'"version":1', b'"version":3')
    path.write_bytes(newer)
    with pytest.raises(SetupError, match=r"version 3; this agent knows versions up to 2.*drain the node"):
        checkpoint.read()
    assert path.read_bytes() == newer


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


def test_one_gpu_has_one_owner_unless_both_hold_shares_or_one_only_looks_on() -> None:
    def excludes(a: PreparedClaim, b: PreparedClaim) -> bool:
        assert a.devices[0].excludes(b.devices[0]) == b.devices[0].excludes(a.devices[0])
        return a.devices[0].excludes(b.devices[0])

    assert excludes(prepared(), prepared())
    assert not excludes(prepared(), prepared(gpu="GPU-b"))
    assert excludes(prepared(share="s"), prepared())
    assert not excludes(prepared(share="s"), prepared(share="t"))
    assert not excludes(prepared(admin=True), prepared())
