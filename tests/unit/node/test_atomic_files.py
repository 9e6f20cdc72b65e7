from __future__ import annotations

import os
from pathlib import Path

import pytest

from dradriver.node import atomic_files


def test_a_file_is_replaced_whole_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    atomic_files.write(path, b"old")
    atomic_files.write(path, b"new" * 100_000)
    assert path.read_bytes() == b"new" * 100_000
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_yet_whole_has_no_name_that_a_container_runtime_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: names.extend(p.name for p in tmp_path.iterdir()))
    atomic_files.write(tmp_path / "x.json", b"{}")
    assert names[0].endswith(".tmp")


def test_two_agents_that_write_one_file_at_once_leave_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fsync = tmp_path / "x.json", os.fsync

    def meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "getpid", lambda: 7)
        atomic_files.write(path, b"theirs")
        monkeypatch.undo()

    monkeypatch.setattr(os, "fsync", meanwhile)
    atomic_files.write(path, b"o" * 3)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"ooo", [path])


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "x.json"
    atomic_files.write(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        atomic_files.write(path, b"new")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    atomic_files.write(tmp_path / "x", b"0123456789")
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_removing_what_is_not_there_is_fine(tmp_path: Path) -> None:
    atomic_files.remove(tmp_path / "x")
    atomic_files.write(tmp_path / "x", b"")
    atomic_files.remove(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_goes_however_deep_it_is(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    (tmp_path / "x").mkdir()
    below = os.open(tmp_path / "x", os.O_RDONLY)
    for _ in range(1500):  # deeper than calls go, and than a path's name
        os.symlink(outside, "link", dir_fd=below)
        os.mkdir("deep", dir_fd=below)
        above, below = below, os.open("deep", os.O_RDONLY, dir_fd=below)
        os.close(above)
    os.close(below)
    atomic_files.remove(tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_a_folder_in_a_files_place_goes_too(tmp_path: Path) -> None:
    (tmp_path / "x.json" / "more").mkdir(parents=True)
    atomic_files.remove(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []
