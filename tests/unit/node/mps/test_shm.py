"""What clients leave in the /dev/shm of their shares."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dradriver.node.mps.shm import SharedFolder


class Host:
    """Processes as the kernel lists them, and a daemon's ``shm``: containers have it as /dev/shm, others do not."""

    def __init__(self, root: Path) -> None:
        self.proc, self.shm = root / "proc", root / "shm"
        self.proc.mkdir()
        self.shm.mkdir()
        self.now = 0.0
        self.folder = SharedFolder(self.shm, proc=self.proc, clock=lambda: self.now)

    def run(self, pid: int, *, container: str, client: bool = True) -> None:
        own = self.proc / str(pid)
        for name in ("fd", "ns"):
            (own / name).mkdir(parents=True)
        device = self.shm.stat().st_dev
        mounts = [(0, 64, "/dev"), (0, 65, "/dev/shm")]
        mounts += [(os.major(device), os.minor(device), "/dev/shm" if client else "/dev/shm/of-others")]
        lines = [f"{n} 1 {major}:{minor} / {at} rw - tmpfs mps rw\n" for n, (major, minor, at) in enumerate(mounts)]
        (own / "mountinfo").write_text("".join(lines))
        (own / "maps").write_text("7f00-7f01 rw-s 00000000 00:00 0 [heap]\n")
        space = self.proc / f"mnt of {container}"
        space.touch()
        (own / "ns/mnt").symlink_to(space)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    def write(self, name: str) -> Path:
        path = self.shm / name
        path.write_text("data")
        return path

    def open(self, pid: int, name: str) -> None:
        (self.proc / str(pid) / "fd" / "3").symlink_to(f"/dev/shm/{name}")

    def map(self, pid: int, name: str) -> None:
        status = (self.shm / name).stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        maps = self.proc / str(pid) / "maps"
        maps.write_text(f"{maps.read_text()}7f02-7f03 rw-s 00000000 {device} {status.st_ino}    /dev/shm/{name}\n")

    def close(self, pid: int) -> None:
        (self.proc / str(pid) / "fd" / "3").unlink(missing_ok=True)
        (self.proc / str(pid) / "maps").write_text("")

    def tidy(self, daemon: int = 1) -> list[str]:
        self.now += 11
        return sorted(self.folder.tidy([daemon]))

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.shm.iterdir())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.run(1, container="daemon")
    return host


def test_what_a_client_left_goes_when_it_ends_and_another_clients_stays(host: Host) -> None:
    host.run(10, container="old")
    host.run(20, container="young")
    for name in ("torch_1", "torch_2", "sem.mp-old"):
        host.write(name)
    host.open(20, "torch_1")
    host.map(20, "torch_2")
    host.map(10, "sem.mp-old")
    assert host.tidy() == []
    host.end(20)
    assert host.tidy() == ["torch_1", "torch_2"]
    assert host.left == ["sem.mp-old"]


def test_a_file_that_a_living_client_closed_or_another_one_holds_stays(host: Host) -> None:
    host.run(10, container="a")
    host.run(20, container="b")
    host.write("closed")
    host.open(10, "closed")
    host.write("both")
    host.map(20, "both")
    assert host.tidy() == []
    host.close(10)
    host.open(10, "both")
    host.end(20)
    assert host.tidy() == []
    host.end(10)
    assert host.tidy() == ["both", "closed"]


def test_a_container_ends_with_its_last_process(host: Host) -> None:
    host.run(10, container="a")
    host.run(11, container="a")
    host.write("of-the-child")
    host.open(11, "of-the-child")
    assert host.tidy() == []
    host.end(11)
    assert host.tidy() == []
    host.end(10)
    assert host.tidy() == ["of-the-child"]


def test_what_the_daemon_holds_for_its_clients_stays_while_it_does(host: Host) -> None:
    host.run(2, container="daemon")
    host.run(10, container="a")
    host.write("cuda.shm.0.1")
    host.map(10, "cuda.shm.0.1")
    host.map(2, "cuda.shm.0.1")
    host.write("cuda.shm.server")
    host.map(2, "cuda.shm.server")
    assert host.tidy() == []
    host.end(10)
    assert host.tidy() == []
    host.close(2)
    assert host.tidy() == ["cuda.shm.0.1"]
    assert host.left == ["cuda.shm.server"]  # no client's


def test_what_was_not_seen_in_use_stays(host: Host) -> None:
    host.run(10, container="a")
    host.run(99, container="elsewhere", client=False)
    host.write("unknown")
    host.open(99, "unknown")  # of that name in its own /dev/shm
    (host.shm / "folder").mkdir()
    assert host.tidy() == []
    host.end(10)
    host.end(99)
    assert host.tidy() == []
    assert host.left == ["folder", "unknown"]


def test_no_code_looks_into_the_file_systems_of_containers(host: Host) -> None:
    """One may hang, and a link in one may name the folder."""
    host.run(10, container="a")
    host.run(99, container="elsewhere", client=False)
    (host.proc / "99/root/dev").mkdir(parents=True)
    (host.proc / "99/root/dev/shm").symlink_to(host.shm)
    host.write("left")
    host.open(10, "left")
    host.open(99, "left")
    assert host.tidy() == []
    host.end(10)
    assert host.tidy() == ["left"]


def test_a_link_that_a_client_made_is_not_followed(host: Host, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("of the host")
    host.run(10, container="a")
    (host.shm / "link").symlink_to(target)
    host.open(10, "link")
    assert host.tidy() == []
    host.end(10)
    assert host.tidy() == ["link"]
    assert target.read_text() == "of the host"


def test_who_holds_a_new_file_is_seen_within_a_second_and_all_files_are_looked_at_every_ten(host: Host) -> None:
    host.run(10, container="a")
    host.write("first")
    host.open(10, "first")
    assert host.tidy() == []
    host.end(10)
    host.now += 2
    assert host.folder.tidy([1]) == []
    host.write("second")
    host.now += 2
    assert host.folder.tidy([1]) == ["first"]
    host.shm.joinpath("second").unlink()
    shutil.rmtree(host.shm)
    host.now += 2
    with pytest.raises(OSError, match="shm"):
        host.folder.tidy([1])
