"""The process that runs MPS control daemons, with a stand-in for NVIDIA's program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.__main__ import main
from dradriver.node import selinux
from dradriver.node.boot import boot_id
from dradriver.node.devices.nvidia.nvml_control import NvmlControl
from dradriver.node.errors import HardwareError, SetupError
from dradriver.node.mps import daemon as daemons
from dradriver.node.mps import enter, limits
from dradriver.node.mps import main as mps
from dradriver.node.mps.daemon import Daemon
from dradriver.node.mps.files import STALE_S, MpsFolder, Server
from dradriver.node.mps.supervisor import CHECK_S, KEEP_S, Supervisor
from tests import needs
from tests.fakes import mps_control
from tests.fakes.mps_node import HALF, A, B, Node, alive, look, standing


@pytest.fixture
def node() -> Iterator[Node]:
    with standing() as node:
        yield node


def test_a_daemon_runs_while_it_is_wanted_with_the_limits_that_are_wanted(node: Node) -> None:
    node.look()
    assert node.files.ready(A) is None
    node.files.want(A, HALF)
    node.look()
    wanted = node.files.wanted(A)
    assert wanted is not None
    assert node.files.ready(A) == wanted
    assert node.log(A) == [
        f"start -d -M for {A}",
        f"Cmd:get_default_device_pinned_mem_limit {A}",
        f"Cmd:set_default_device_pinned_mem_limit {A} 40000M",
        f"Cmd:get_default_device_pinned_mem_limit {A}",
        "Cmd:get_default_active_thread_percentage",
        "Cmd:set_default_active_thread_percentage 50",
        "Cmd:get_default_active_thread_percentage",
    ]
    pid = node.pid(A)
    node.look()
    assert node.pid(A) == pid
    node.files.want_none(A)
    node.look()
    assert (node.files.ready(A), node.of(A).alive(), (node.files.of(A) / "pipe").exists()) == (None, False, False)
    assert node.log(A)[-1] == "Cmd:quit -t 1"


def test_each_gpu_has_its_own_and_none_is_set_where_nothing_is_limited(node: Node) -> None:
    for gpu in (A, B):
        node.files.want(gpu, Server())
    node.look()
    assert [node.log(gpu) for gpu in (A, B)] == [[f"start -d -M for {gpu}"] for gpu in (A, B)]
    node.files.want_none(A)
    node.look()
    assert (node.files.ready(A), node.trouble(B), node.of(B).alive()) == (None, "", True)


@pytest.mark.parametrize(
    "limits", [Server(memory_mib=512), Server(memory_mib=2048), Server(memory_mib=40_001), Server(thread_percentage=1)]
)
def test_what_was_set_is_read_back_however_it_is_shown(limits: Server, node: Node) -> None:
    node.files.want(A, limits)
    node.look()
    assert node.trouble(A) == ""


def test_a_daemon_that_does_not_take_its_limits_does_not_serve(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.say(A, "deaf")
    node.files.want(A, HALF)
    node.look()
    assert "does not keep to 50 % of the threads: '100.0'" in node.trouble(A)
    assert "does not keep to" in caplog.text


def test_a_daemon_that_dies_is_started_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.files.want(A, HALF)
    node.look()
    before = node.pid(A)
    node.kill(A)
    node.look()
    assert node.pid(A) != before
    assert (node.trouble(A), node.of(A).ask("get_default_active_thread_percentage")) == ("", "50.0")
    assert f"MPS of GPU {A} died" in caplog.text


def test_one_that_cannot_run_is_tried_ever_more_rarely_and_says_why(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.say(A, "old")
    node.files.want(A, Server())
    tries = 0

    class Counted(Daemon):
        def start(self, server: Server) -> None:
            nonlocal tries
            tries += 1
            super().start(server)

    supervisor = Supervisor(
        node.files, lambda gpu, at: Counted(gpu, at, root=None, path=node.path), clock=lambda: node.now
    )
    for _ in range(100):
        look(supervisor)
        node.now += 1.0
    assert caplog.text.count("Unknown option -M") == 1
    assert tries == 8  # at once, and after 1, 2, 4, 8, 16, 30 and 30 seconds
    assert node.trouble(A) == "nvidia-cuda-mps-control -d -M failed (1): Unknown option -M"
    (node.files.of(A) / "old").unlink()
    node.now += 30.0
    look(supervisor)
    assert node.trouble(A) == ""


def test_without_the_program_it_is_said_where_it_comes_from(node: Node) -> None:
    node.path = "/nowhere"
    node.files.want(A, Server())
    node.look()
    assert "it comes with the NVIDIA driver" in node.trouble(A)


def test_a_socket_whose_name_is_too_long_is_no_daemon(node: Node, tmp_path: Path) -> None:
    """The program says that it has started, and dies."""
    daemon = node.daemon(A, tmp_path / ("deep" * 25))
    with pytest.raises(SetupError, match=r"has not started|died at once"):
        daemon.start(Server())


@pytest.mark.slow
def test_another_process_takes_over_what_runs_and_what_it_no_longer_finds_wanted_ends(node: Node) -> None:
    for gpu in (A, B):
        node.files.want(gpu, HALF)
    node.look()
    pid = node.pid(A)
    node.files.want_none(B)
    node.supervisor = node.another()
    node.look()
    assert (node.pid(A), node.trouble(A)) == (pid, "")
    assert (node.files.ready(B), node.of(B).alive()) == (None, False)


def test_what_a_daemon_left_that_was_killed_is_in_nobodys_way(node: Node) -> None:
    node.files.want(A, HALF)
    node.look()
    node.kill(A)
    pipe = node.files.of(A) / "pipe"
    (pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))  # another process has the number now
    node.supervisor = node.another()
    node.look()
    assert node.trouble(A) == ""
    assert node.pid(A) != os.getpid()


@pytest.mark.slow
def test_one_that_does_not_end_is_killed_with_its_servers(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.files.want(A, HALF)
    node.look()
    node.of(A).ask("start_server -uid 0")
    (server,) = map(int, node.of(A).ask("get_server_list").split())
    node.say(A, "stubborn")
    node.files.want_none(A)
    node.look()
    assert (node.files.ready(A), node.of(A).alive()) == (None, False)
    assert f"process {server} is killed" in caplog.text


def test_clients_that_are_left_after_the_last_share_are_not_waited_for(node: Node) -> None:
    node.files.want(A, HALF)
    node.look()
    node.of(A).ask("start_server -uid 0")
    node.files.want_none(A)
    node.look()
    assert (node.files.ready(A), node.of(A).alive()) == (None, False)


def test_folders_that_a_client_makes_are_in_nobodys_way(node: Node) -> None:
    """What is mounted into containers is theirs to write to, as root of a container may."""
    node.files.want(A, HALF)
    node.look()
    for name in ("pipe", "shm"):
        (node.files.of(A) / name / "theirs/deep").mkdir(parents=True)
        (node.files.of(A) / name / "a link").symlink_to(node.files.of(B))
    node.files.of(B).mkdir()
    node.files.want_none(A)
    node.look()
    assert (node.files.ready(A), (node.files.of(A) / "pipe").exists()) == (None, False)
    assert node.files.of(B).exists()


@pytest.mark.parametrize("written", ["gone", "1", "another GPU's"])
def test_a_clients_word_of_the_daemons_process_is_not_believed(written: str, node: Node) -> None:
    for gpu in (A, B):
        node.files.want(gpu, HALF)
    node.look()
    pids = node.pid(A), node.pid(B)
    file = node.files.of(A) / "pipe/nvidia-cuda-mps-control.pid"
    file.unlink()
    if written != "gone":
        file.write_text(str(pids[1]) if written == "another GPU's" else written)
    node.look()  # the daemon serves as before
    assert [line for line in node.log(A) if line.startswith("start")] == [f"start -d -M for {A}"]
    (node.files.of(A) / "pipe/control").unlink()  # nor can it be asked to quit
    node.files.want_none(A)
    node.look()
    assert [alive(pid) for pid in pids] == [False, True]
    assert (node.files.ready(A), node.of(B).ask("get_default_active_thread_percentage")) == (None, "50.0")


@pytest.mark.parametrize("trap", ["a FIFO", "a link to /dev/zero", "a device", "a folder"])
def test_what_a_client_puts_in_place_of_the_pid_file_is_not_opened(trap: str, node: Node) -> None:
    node.files.want(A, HALF)
    node.look()
    pid, file = node.pid(A), node.files.of(A) / "pipe/nvidia-cuda-mps-control.pid"
    file.unlink()
    if trap == "a FIFO":
        os.mkfifo(file)  # whoever opens it waits for ever
    elif trap == "a folder":
        file.mkdir()
    elif trap == "a device":
        file.symlink_to("/dev/full")
    else:
        file.symlink_to("/dev/zero")  # has no end
    node.supervisor = node.another()
    node.look()
    assert (node.trouble(A), alive(pid)) == ("", True)
    assert [line for line in node.log(A) if line.startswith("start")] == [f"start -d -M for {A}"]
    node.files.want_none(A)
    node.look()
    assert (node.files.ready(A), alive(pid)) == (None, False)


def test_a_tenants_process_that_is_called_so_is_nobodys_daemon(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same name and variables, but in a control group of its own, as containers are."""
    pipe = node.files.of(A) / "pipe"
    env = {"CUDA_VISIBLE_DEVICES": A, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    env["CUDA_MPS_LOG_DIRECTORY"] = str(node.files.of(A) / "log")
    named = "import ctypes, signal; ctypes.CDLL(None).prctl(15, b'nvidia-cuda-mps', 0, 0, 0); signal.pause()"
    command = ["/bin/sh", "-c", '"$1" -c "$2" > /dev/null & echo $!', "sh", sys.executable, named]
    theirs = int(subprocess.run(command, env={"PATH": os.defpath} | env, stdout=subprocess.PIPE, check=True).stdout)
    while not Path(f"/proc/{theirs}/comm").read_text().startswith("nvidia"):
        os.sched_yield()
    true = daemons._cgroup
    monkeypatch.setattr(daemons, "_cgroup", lambda process: b"0::/theirs" if process == theirs else true(process))
    try:
        assert not node.of(A).alive()
        node.files.want(A, HALF)
        node.look()
        assert node.pid(A) != theirs
        node.files.want_none(A)
        node.look()
        assert alive(theirs)
    finally:
        os.kill(theirs, signal.SIGKILL)


def test_nobody_asks_another_gpus_server_whose_it_is(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even that hangs where the driver holds its memory, and would hold up the other GPU."""
    node.files.want(A, HALF)
    node.look()
    node.of(A).ask("start_server -uid 0")
    server = int(node.of(A).ask("get_server_list"))
    asked: list[int] = []
    environ = daemons._Process.environ

    def ask(self: daemons._Process) -> list[bytes]:
        asked.append(self.pid)
        return environ(self)

    monkeypatch.setattr(daemons._Process, "environ", ask)
    node.files.want(B, HALF)
    node.look()
    assert (node.trouble(B), server in asked, node.pid(B) in asked) == ("", False, True)


def test_limits_that_a_client_changed_are_set_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Root of a container has the daemon's uid, and can ask it whatever its folder's owner can."""
    node.files.want(A, HALF)
    node.look()
    node.of(A).ask("set_default_active_thread_percentage 100")
    node.of(A).ask(f"set_default_device_pinned_mem_limit {A} 80000M")
    node.look()
    assert node.of(A).ask("get_default_active_thread_percentage") == "100.0"
    node.now += CHECK_S
    node.look()
    assert node.of(A).ask("get_default_active_thread_percentage") == "50.0"
    assert node.of(A).ask(f"get_default_device_pinned_mem_limit {A}") == "39G"
    assert "has a limit back" in caplog.text
    caplog.clear()
    node.now += CHECK_S
    node.look()
    assert caplog.text == ""


@pytest.mark.parametrize(("limit", "more"), [(1024, 2047), (40_000, 40_959)])
def test_a_limit_that_is_shown_in_whole_gib_is_set_again_whatever_is_shown(limit: int, more: int, node: Node) -> None:
    node.files.want(A, Server(memory_mib=limit))
    node.look()
    node.of(A).ask(f"set_default_device_pinned_mem_limit {A} {more}M")
    assert node.of(A).ask(f"get_default_device_pinned_mem_limit {A}") == f"{limit // 1024}G"
    node.now += CHECK_S
    node.look()
    assert node.log(A)[-1] == f"Cmd:set_default_device_pinned_mem_limit {A} {limit}M"


def test_limits_of_servers_that_run_are_set_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A server took the daemon's when it started; who speaks to the daemon can give it others, for clients to come."""
    node.files.want(A, HALF)
    node.look()
    for _ in range(2):
        node.of(A).ask("start_server -uid 0")
    first, second = node.of(A).ask("get_server_list").split()
    node.of(A).ask(f"set_active_thread_percentage {first} 100")
    node.of(A).ask(f"set_device_pinned_mem_limit {second} {A} 80000M")
    node.now += CHECK_S
    node.look()
    for server in (first, second):
        assert node.of(A).ask(f"get_active_thread_percentage {server}") == "50.0"
        assert node.of(A).ask(f"get_device_pinned_mem_limit {server} {A}") == "40000M"
    assert caplog.text.count("has a limit back") == 2


def answering(node: Node, gpu: str, text: bytes, *, times: int = 1) -> contextlib.closing[socket.socket]:
    """Return a socket in the daemon's place, as root of a container can put one there."""
    path = node.files.of(gpu) / "pipe/control"
    path.unlink()
    end = socket.socket(socket.AF_UNIX)
    end.bind(str(path))
    end.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = end.accept()
                with peer, contextlib.suppress(OSError):
                    peer.recv(4096)
                    for _ in range(times):
                        peer.sendall(text)

    threading.Thread(target=serve, daemon=True).start()
    return contextlib.closing(end)


@pytest.mark.slow
@pytest.mark.parametrize("text", [b"9" * 5000 + b"M\n", b"\xff\0M", b"1e999", b"50.0\n", b"40000M\n", b""])
def test_what_a_client_answers_in_the_daemons_place_is_not_believed(text: bytes, node: Node) -> None:
    node.files.want(A, HALF)
    node.look()
    with answering(node, A, text):
        node.now += CHECK_S
        node.look()  # it raises nothing: the end of this process would be that of all GPUs' daemons
        assert "a container has taken the daemon's socket" in node.trouble(A)
    assert node.of(A).alive()


@pytest.mark.parametrize("text", [b"9" * 5000 + b"M\n", b"\xff\0M", b"1e999", b""])
def test_no_answer_is_more_than_a_limit_that_is_not_kept(text: bytes) -> None:
    with pytest.raises(SetupError, match="does not keep to a limit of 40000M"):
        limits.hold(lambda _: text.decode("utf-8", "replace"), A, HALF)


def test_a_gpu_whose_daemon_cannot_be_asked_takes_no_more_shares_until_it_can(node: Node) -> None:
    node.files.want(A, HALF)
    node.look()
    control = node.files.of(A) / "pipe/control"
    control.rename(control.with_name("away"))
    node.now += CHECK_S
    node.look()
    assert "has taken the daemon's socket" in node.trouble(A)
    control.with_name("away").rename(control)
    node.now += CHECK_S
    node.look()
    assert node.trouble(A) == ""


def test_a_socket_that_came_after_the_daemons_is_not_believed_at_a_start_that_is_tried_again(node: Node) -> None:
    node.say(A, "deaf")  # as one to which a client sets limits again and again
    node.files.want(A, HALF)
    node.look()
    assert "does not keep to" in node.trouble(A)
    with answering(node, A, b"50.0\n"):
        for seconds in (2.0, CHECK_S):
            node.now += seconds
            node.look()
            assert "a container has taken the daemon's socket" in node.trouble(A)


def test_what_says_without_end_is_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.files.want(A, HALF)
    node.look()
    monkeypatch.setattr(daemons, "_CALL_S", 600.0)
    with (
        answering(node, A, b"x" * 65536, times=1 << 30),
        pytest.raises(SetupError, match="says more than 65536 bytes"),
    ):
        node.of(A).ask("get_server_list")


def test_a_surprise_is_one_gpus(node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    start = Daemon.start

    def odd(self: Daemon, server: Server) -> None:
        if self.folder == node.files.of(A):
            raise ValueError("a bug")
        start(self, server)

    monkeypatch.setattr(Daemon, "start", odd)
    for gpu in (A, B):
        node.files.want(gpu, HALF)
    node.look()
    assert (node.files.ready(A), node.trouble(B)) == (None, "")
    assert "a bug" in caplog.text


def test_a_log_does_not_fill_the_disk(node: Node) -> None:
    node.files.want(A, Server())
    node.look()
    log = node.files.of(A) / "log/control.log"
    with log.open("ab") as file:
        for _ in range(17):
            file.write(bytes(range(256)) * 4096)
    node.now += CHECK_S
    node.look()
    assert log.stat().st_size == 0


def test_a_program_that_cannot_be_killed_is_left_and_not_asked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.files.want(A, HALF)
    node.look()
    monkeypatch.setattr(daemons, "_CALL_S", 0.2)
    monkeypatch.setattr(daemons, "_KILLED_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)  # as in a call of the driver that does not return
    node.say(A, "hang")
    daemon = node.of(A)
    with pytest.raises(SetupError, match=r"has not answered for"):
        daemon.ask("get_server_list")
    with pytest.raises(SetupError, match=r"hangs in the driver: process \d+ does not end") as caught:
        daemon.ask("get_server_list")
    hangs = int(str(caught.value).partition("process ")[2].split()[0])
    assert daemon.alive()  # which is not what hangs
    os.kill(hangs, signal.SIGKILL)
    (node.files.of(A) / "hang").unlink()
    while alive(hangs):
        os.sched_yield()
    assert daemon.ask("get_server_list") == ""


async def test_a_gpu_whose_driver_hangs_holds_up_no_other(node: Node) -> None:
    files = MpsFolder(node.files.path, boot=boot_id())
    control = NvmlControl(driver_root=None, mps=files)
    node.say(A, "hang")
    files.want(A, HALF)
    task = asyncio.create_task(mps.run(node.files.path.parent, None, health_port=0, path=node.path))
    await serve(control, B, HALF)
    assert (files.ready(A), node.of(B).alive()) == (None, True)
    await asyncio.to_thread(control.stop_mps, B)
    assert not node.of(B).alive()
    (node.files.of(A) / "hang").unlink()
    while files.ready(A) is None:
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_that_a_driver_hangs_is_told_until_it_does_not(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "HANGS_S", 0.0)
    files = MpsFolder(node.files.path, boot=boot_id())
    node.say(A, "hang")
    files.want(A, HALF)
    task = asyncio.create_task(mps.run(node.files.path.parent, None, health_port=0, path=node.path))
    while (told := files.ready(A)) is None:
        await asyncio.sleep(0)
    assert "does not come back; it hangs in the driver" in told.trouble
    (node.files.of(A) / "hang").unlink()
    while (told := files.ready(A)) is None or told.trouble:
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def serve(control: NvmlControl, gpu: str, server: Server) -> None:
    """Do as the agent does: want it, and ask until it is so."""
    control.start_mps(gpu, server)
    while True:
        try:
            return control.check_mps(gpu, server)
        except HardwareError:
            await asyncio.sleep(0.05)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is not below what a daemon's own mounts hide."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        yield folder
    finally:
        for mounted in folder.glob("mps/*/*"):
            enter.unmount(mounted)
        shutil.rmtree(folder)


def test_a_daemons_folders_are_mounts_of_a_size_of_their_own_that_go_with_it(outside: Path) -> None:
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


def test_what_containers_are_given_is_labelled_where_selinux_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    selinux.label(file)
    assert selinux.mount_option() == ""
    monkeypatch.setattr(selinux, "_ON", tmp_path)
    assert selinux.mount_option() == ',context="system_u:object_r:container_file_t:s0"'
    selinux.label(file)
    if "cannot be labelled" in caplog.text:
        needs.missing("no right to label files")
    assert os.getxattr(file, "security.selinux") == b"system_u:object_r:container_file_t:s0\0"
    selinux.label(tmp_path / "nothing")  # what cannot be labelled keeps no pod from starting
    assert "nothing cannot be labelled for containers" in caplog.text


def test_a_daemons_mounts_are_labelled_where_selinux_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}
    monkeypatch.setattr(selinux, "_ON", tmp_path)
    monkeypatch.setattr(enter, "mount", lambda folder, options: asked.update({folder.name: options}))
    with pytest.raises(SetupError):  # there is no such program
        Daemon(A, tmp_path / "mps", root=Path("/"), path="/nowhere").start(HALF)
    assert asked.keys() == {"pipe", "shm"}
    assert all(options.endswith(f',context="{selinux.CONTEXT}"') for options in asked.values())


def test_a_daemon_starts_where_selinux_knows_no_label_for_containers(
    outside: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (outside / "shm").mkdir()
    try:
        enter.mount(outside / "shm", "size=1m")
        enter.unmount(outside / "shm")
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


def test_an_answer_is_kept_fresh_and_one_that_nobody_keeps_is_none(node: Node) -> None:
    node.files.want(A, Server())
    node.look()
    file = node.files.of(A) / "ready.json"
    os.utime(file, (0, 0))
    assert node.files.ready(A) is None
    node.look()
    assert node.files.ready(A) is None  # it was said a moment ago
    node.now += KEEP_S
    node.look()
    assert node.files.ready(A) is not None
    assert KEEP_S < STALE_S / 3
    ahead_s = time.time() + 2 * STALE_S  # the clock was put back since
    os.utime(file, (ahead_s, ahead_s))
    assert node.files.ready(A) is None


def test_an_end_says_that_nothing_serves_any_more(node: Node) -> None:
    node.files.want(A, Server())
    node.look()
    node.supervisor.leave()
    assert node.files.ready(A) is None
    node.files.want(B, Server())
    node.look()  # one that is under way when all ends
    assert node.files.ready(B) is None


def test_every_wish_of_a_gpu_that_hangs_is_answered(node: Node) -> None:
    for server in (HALF, Server(memory_mib=2048)):
        node.files.want(A, server)
        wanted = node.files.wanted(A)
        node.supervisor.hangs(A.lower(), wanted)
        ready = node.files.ready(A)
        assert ready is not None
        assert (ready.server, "hangs in the driver" in ready.trouble) == (server, True)


@pytest.mark.parametrize("text", ["{", "[]", '{"gpu": 1}', '{"gpu":"GPU-x","boot":"b","server":{}}'])
def test_what_nobody_of_ours_wrote_wants_nothing(text: str, node: Node) -> None:
    node.files.of(A).mkdir(parents=True)
    (node.files.of(A) / "wanted.json").write_text(text)
    node.look()
    assert node.files.ready(A) is None


@pytest.mark.slow
async def test_the_process_does_all_that(node: Node) -> None:
    """The agent's side waits for it, in the thread that changes hardware."""
    files = MpsFolder(node.files.path, boot=boot_id())
    control = NvmlControl(driver_root=None, mps=files)
    task = asyncio.create_task(mps.run(node.files.path.parent, None, health_port=0, path=node.path))
    for server in (HALF, Server()):
        await serve(control, A, server)
        assert node.of(A).alive()
        await asyncio.to_thread(control.stop_mps, A)
        assert not node.of(A).alive()
    await serve(control, A, HALF)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert files.ready(A) is None


# In the shell's words: of an interpreter below /tmp, such as that of a checkout there, nothing can be seen any more.
MOUNTS = (
    "echo $(ls /tmp) : $(ls /tmp/nvidia-mps) : $(ls /tmp/nvidia-log) : $(ls /dev/shm); touch /tmp/nvidia-mps/made; "
    "for folder in /tmp/nvidia-mps /dev/shm; do echo written 2>/dev/null >$folder/link; done; exit 0"
)


def test_a_program_of_the_drivers_finds_its_folders_at_short_paths_and_nobody_else_sees_them(
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
    command = [sys.executable, "-I", enter.__file__, "/", str(tmp_path / "gpu")]
    done = subprocess.run(
        [*command, "/bin/sh", "-c", MOUNTS], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    if "Operation not permitted" in done.stderr:
        needs.missing("no right to mount")
    assert done.stdout == "nvidia-log nvidia-mps : in-pipe link : in-log : in-shm link\n", done.stderr
    assert (tmp_path / "gpu/pipe/made").exists()
    assert host.read_text() == ""
    assert not os.path.ismount(tmp_path / "gpu/shm")


def test_its_command_line_is_one_of_the_drivers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mps", "--help"])
    assert ended.value.code == 0
    assert "--driver-root" in capsys.readouterr().out
