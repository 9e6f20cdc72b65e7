"""Mounts of an MPS daemon's folders: of a size, labelled, and at short paths that it alone sees."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dradriver.node import selinux
from dradriver.node.errors import SetupError
from dradriver.node.mps import mount_namespace
from dradriver.node.mps.daemon import Daemon
from tests import needs
from tests.fakes import mps_control
from tests.fakes.mps_node import HALF, A


def mebibytes(folder: Path) -> int:
    mounted = os.statvfs(folder)
    return mounted.f_blocks * mounted.f_frsize >> 20


@pytest.mark.slow
def test_a_daemons_folders_are_mounts_of_a_size_of_their_own_that_go_with_it(
    outside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = mps_control.write(outside / "bin")
    folder = outside / "mps" / A.lower()
    daemon = Daemon(A, folder, root=Path("/"), path=path, quit_s=1)
    try:
        daemon.start(HALF)
    except (OSError, SetupError) as error:
        if "Operation not permitted" in str(error):
            needs.missing("no right to mount")
        raise
    try:
        assert all(os.path.ismount(folder / name) for name in ("pipe", "shm"))
        full = os.statvfs(folder / "pipe")
        assert full.f_blocks * full.f_frsize == 16 << 20
        assert full.f_files <= 16 << 10
        assert stat.S_IMODE((folder / "shm").stat().st_mode) == 0o1777
        assert mebibytes(folder / "shm") == 8192  # for all shares together, not half of the host's memory
        assert os.statvfs(folder / "shm").f_files <= 64 << 10
        daemon.start(msgspec.structs.replace(HALF, shm_mib=256))
        assert mebibytes(folder / "shm") == 256
        (folder / "shm/left").write_bytes(bytes(2 << 20))
        daemon.start(msgspec.structs.replace(HALF, shm_mib=1))
        assert mebibytes(folder / "shm") == 256  # it holds more than that; the log says so
        assert "cannot be resized to 1 MiB" in caplog.text
        assert (folder / "pipe/control").is_socket()
        deep = os.open(folder / "pipe", os.O_RDONLY)
        for _ in range(2000):  # deeper than any walk in Python goes
            os.mkdir("deep", dir_fd=deep)
            below = os.open("deep", os.O_RDONLY, dir_fd=deep)
            os.close(deep)
            deep = below
        os.close(deep)
        assert daemon.ask("get_default_active_thread_percentage") == "50.0"
    finally:
        daemon.stop()
    assert not any(os.path.ismount(folder / name) for name in ("pipe", "shm"))
    assert list((folder / "pipe").iterdir()) == []
    daemon.start(HALF)  # and again, after whatever was left
    daemon.stop()


def test_a_daemons_mounts_are_labelled_where_selinux_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}
    monkeypatch.setattr(selinux, "_ON", tmp_path)
    monkeypatch.setattr(mount_namespace, "mount", lambda folder, options: asked.update({folder.name: options}))
    with pytest.raises(SetupError):  # there is no such program
        Daemon(A, tmp_path / "mps", root=Path("/"), path="/nowhere").start(HALF)
    assert asked.keys() == {"pipe", "shm"}
    assert all(options.endswith(f',context="{selinux.CONTEXT}"') for options in asked.values())


@pytest.mark.slow
def test_a_daemon_starts_where_selinux_knows_no_label_for_containers(
    outside: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (outside / "shm").mkdir()
    try:
        mount_namespace.mount(outside / "shm", "size=1m")
        mount_namespace.unmount(outside / "shm")
    except OSError:
        needs.missing("no right to mount")
    if selinux.enabled():
        needs.missing("no kernel that refuses labels")
    monkeypatch.setattr(selinux, "_ON", outside)
    daemon = Daemon(A, outside / "mps" / A.lower(), root=Path("/"), path=mps_control.write(outside / "bin"), quit_s=1)
    try:
        daemon.start(HALF)
        assert os.path.ismount(daemon.folder / "pipe")
        assert "pipe cannot be labelled for containers" in caplog.text
    finally:
        daemon.stop()


# In the shell's words: of an interpreter below /tmp, such as that of a checkout there, nothing can be seen any more.
MOUNTS = (
    "echo $(ls /tmp) : $(ls /tmp/nvidia-mps) : $(ls /tmp/nvidia-log) : $(ls /dev/shm); touch /tmp/nvidia-mps/made; "
    "for folder in /tmp/nvidia-mps /dev/shm; do echo written 2>/dev/null >$folder/link; done; exit 0"
)


def test_a_program_of_the_drivers_finds_its_folders_at_short_paths_that_no_other_program_sees(
    tmp_path: Path, outside: Path
) -> None:
    """Nor is it led by links that clients make: it is root."""
    for name in ("pipe", "log", "shm"):
        (tmp_path / "gpu" / name).mkdir(parents=True)
        (tmp_path / "gpu" / name / f"in-{name}").touch()
    host = outside / "of-the-host"
    host.touch()
    for name in ("pipe", "shm"):
        (tmp_path / "gpu" / name / "link").symlink_to(host)
    command = [sys.executable, "-I", mount_namespace.__file__, "/", str(tmp_path / "gpu")]
    done = subprocess.run(
        [*command, "/bin/sh", "-c", MOUNTS], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    if "Operation not permitted" in done.stderr:
        needs.missing("no right to mount")
    assert done.stdout == "nvidia-log nvidia-mps : in-pipe link : in-log : in-shm link\n", done.stderr
    assert (tmp_path / "gpu/pipe/made").exists()
    assert host.read_text() == ""
    assert not os.path.ismount(tmp_path / "gpu/shm")
