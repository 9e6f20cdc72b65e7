"""The process that runs MPS control daemons, with a stand-in for NVIDIA's program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.__main__ import main
from dradriver.node.devices.made import boot_id
from dradriver.node.devices.nvml import NvmlControl
from dradriver.node.errors import SetupError
from dradriver.node.mps import enter
from dradriver.node.mps import main as mps
from dradriver.node.mps.daemon import Daemon
from dradriver.node.mps.files import STALE_S, MpsFolder, Server
from dradriver.node.mps.supervisor import KEEP_S, Supervisor
from tests import needs
from tests.fakes import mps_control
from tests.fakes.node import short_folder

A, B = (f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in range(2))
HALF = Server(memory_mib=40_000, thread_percentage=50)


class Node:
    """A node's folder for MPS, and supervisors that come and go."""

    def __init__(self, root: Path) -> None:
        self.files = MpsFolder(root / "mps", boot="b")
        self.path = mps_control.write(root / "bin")
        self.now = 0.0
        self.supervisor = self.another()

    def another(self) -> Supervisor:
        return Supervisor(self.files, self.daemon, clock=lambda: self.now)

    def daemon(self, gpu: str, folder: Path) -> Daemon:
        return Daemon(gpu, folder, root=None, path=self.path, quit_s=1)

    def of(self, gpu: str) -> Daemon:
        return self.daemon(gpu, self.files.of(gpu))

    def pid(self, gpu: str) -> int:
        return int((self.files.of(gpu) / "pipe/nvidia-cuda-mps-control.pid").read_text())

    def log(self, gpu: str) -> list[str]:
        file = self.files.of(gpu) / "log/control.log"
        return [line for line in file.read_text().splitlines() if "get_server_list" not in line]

    def say(self, gpu: str, word: str) -> None:
        self.files.of(gpu).mkdir(parents=True, exist_ok=True)
        (self.files.of(gpu) / word).touch()

    def trouble(self, gpu: str) -> str:
        ready = self.files.ready(gpu)
        assert ready is not None
        return ready.trouble

    def kill(self, gpu: str) -> None:
        pid = self.pid(gpu)
        os.kill(pid, signal.SIGKILL)
        while alive(pid):
            os.sched_yield()


@pytest.fixture
def node() -> Iterator[Node]:
    with short_folder() as folder:
        node = Node(folder)
        try:
            yield node
        finally:
            for gpu in (A, B):
                (node.files.of(gpu) / "stubborn").unlink(missing_ok=True)
                with contextlib.suppress(SetupError):
                    node.of(gpu).stop()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_a_daemon_runs_while_it_is_wanted_with_the_limits_that_are_wanted(node: Node) -> None:
    node.supervisor.look()
    assert node.files.ready(A) is None
    node.files.want(A, HALF)
    node.supervisor.look()
    wanted = node.files.wanted(A)
    assert wanted is not None
    assert node.files.ready(A) == wanted
    assert node.log(A) == [
        f"start -d -M for {A}",
        f"Cmd:set_default_device_pinned_mem_limit {A} 40000M",
        f"Cmd:get_default_device_pinned_mem_limit {A}",
        "Cmd:set_default_active_thread_percentage 50",
        "Cmd:get_default_active_thread_percentage",
    ]
    pid = node.pid(A)
    node.supervisor.look()
    assert node.pid(A) == pid
    node.files.want_none(A)
    node.supervisor.look()
    assert (node.files.ready(A), node.of(A).alive(), (node.files.of(A) / "pipe").exists()) == (None, False, False)
    assert node.log(A)[-1] == "Cmd:quit -t 1"


def test_each_gpu_has_its_own_and_none_is_set_where_nothing_is_limited(node: Node) -> None:
    for gpu in (A, B):
        node.files.want(gpu, Server())
    node.supervisor.look()
    assert [node.log(gpu) for gpu in (A, B)] == [[f"start -d -M for {gpu}"] for gpu in (A, B)]
    node.files.want_none(A)
    node.supervisor.look()
    assert (node.files.ready(A), node.trouble(B), node.of(B).alive()) == (None, "", True)


@pytest.mark.parametrize(
    "limits", [Server(memory_mib=512), Server(memory_mib=2048), Server(memory_mib=40_001), Server(thread_percentage=1)]
)
def test_what_was_set_is_read_back_however_it_is_shown(limits: Server, node: Node) -> None:
    node.files.want(A, limits)
    node.supervisor.look()
    assert node.trouble(A) == ""


def test_a_daemon_that_does_not_take_its_limits_does_not_serve(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.say(A, "deaf")
    node.files.want(A, HALF)
    node.supervisor.look()
    assert "did not take 50 % of the threads: '100.0'" in node.trouble(A)
    assert "did not take" in caplog.text


def test_a_daemon_that_dies_is_started_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.files.want(A, HALF)
    node.supervisor.look()
    before = node.pid(A)
    node.kill(A)
    node.supervisor.look()
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
        supervisor.look()
        node.now += 1.0
    assert caplog.text.count("Unknown option -M") == 1
    assert tries == 8  # at once, and after 1, 2, 4, 8, 16, 30 and 30 seconds
    assert node.trouble(A) == "nvidia-cuda-mps-control -d -M failed (1): Unknown option -M"
    (node.files.of(A) / "old").unlink()
    node.now += 30.0
    supervisor.look()
    assert node.trouble(A) == ""


def test_without_the_program_it_is_said_where_it_comes_from(node: Node) -> None:
    node.path = "/nowhere"
    node.files.want(A, Server())
    node.supervisor.look()
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
    node.supervisor.look()
    pid = node.pid(A)
    node.files.want_none(B)
    node.supervisor = node.another()
    node.supervisor.look()
    assert (node.pid(A), node.trouble(A)) == (pid, "")
    assert (node.files.ready(B), node.of(B).alive()) == (None, False)


def test_what_a_daemon_left_that_was_killed_is_in_nobodys_way(node: Node) -> None:
    node.files.want(A, HALF)
    node.supervisor.look()
    node.kill(A)
    pipe = node.files.of(A) / "pipe"
    (pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))  # another process has the number now
    node.supervisor = node.another()
    node.supervisor.look()
    assert node.trouble(A) == ""
    assert node.pid(A) != os.getpid()


@pytest.mark.slow
def test_one_that_does_not_end_is_killed_with_its_servers(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.files.want(A, HALF)
    node.supervisor.look()
    node.of(A).ask("start_server -uid 0")
    (server,) = map(int, node.of(A).ask("get_server_list").split())
    node.say(A, "stubborn")
    node.files.want_none(A)
    node.supervisor.look()
    assert (node.files.ready(A), node.of(A).alive()) == (None, False)
    assert f"process {server} is killed" in caplog.text


def test_clients_that_are_left_after_the_last_share_are_not_waited_for(node: Node) -> None:
    node.files.want(A, HALF)
    node.supervisor.look()
    node.of(A).ask("start_server -uid 0")
    node.files.want_none(A)
    node.supervisor.look()
    assert (node.files.ready(A), node.of(A).alive()) == (None, False)


def test_folders_that_a_client_makes_are_in_nobodys_way(node: Node) -> None:
    """What is mounted into containers is theirs to write to, as root of a container may."""
    node.files.want(A, HALF)
    node.supervisor.look()
    for name in ("pipe", "shm"):
        (node.files.of(A) / name / "theirs/deep").mkdir(parents=True)
        (node.files.of(A) / name / "a link").symlink_to(node.files.of(B))
    node.files.of(B).mkdir()
    node.files.want_none(A)
    node.supervisor.look()
    assert (node.files.ready(A), (node.files.of(A) / "pipe").exists()) == (None, False)
    assert node.files.of(B).exists()


@pytest.mark.parametrize("written", ["gone", "1", "another GPU's"])
def test_a_clients_word_of_the_daemons_process_is_not_believed(written: str, node: Node) -> None:
    for gpu in (A, B):
        node.files.want(gpu, HALF)
    node.supervisor.look()
    pids = node.pid(A), node.pid(B)
    file = node.files.of(A) / "pipe/nvidia-cuda-mps-control.pid"
    file.unlink()
    if written != "gone":
        file.write_text(str(pids[1]) if written == "another GPU's" else written)
    node.supervisor.look()  # the daemon serves as before
    assert [line for line in node.log(A) if line.startswith("start")] == [f"start -d -M for {A}"]
    (node.files.of(A) / "pipe/control").unlink()  # nor can it be asked to quit
    node.files.want_none(A)
    node.supervisor.look()
    assert [alive(pid) for pid in pids] == [False, True]
    assert (node.files.ready(A), node.of(B).ask("get_default_active_thread_percentage")) == (None, "50.0")


def test_an_answer_is_kept_fresh_and_one_that_nobody_keeps_is_none(node: Node) -> None:
    node.files.want(A, Server())
    node.supervisor.look()
    file = node.files.of(A) / "ready.json"
    os.utime(file, (0, 0))
    assert node.files.ready(A) is None
    node.supervisor.look()
    assert node.files.ready(A) is None  # it was said a moment ago
    node.now += KEEP_S
    node.supervisor.look()
    assert node.files.ready(A) is not None
    assert KEEP_S < STALE_S / 3
    ahead_s = time.time() + 2 * STALE_S  # the clock was put back since
    os.utime(file, (ahead_s, ahead_s))
    assert node.files.ready(A) is None


def test_an_end_says_that_nothing_serves_any_more(node: Node) -> None:
    node.files.want(A, Server())
    node.supervisor.look()
    node.supervisor.leave()
    assert node.files.ready(A) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"gpu": 1}', '{"gpu":"GPU-x","boot":"b","server":{}}'])
def test_what_nobody_of_ours_wrote_wants_nothing(text: str, node: Node) -> None:
    node.files.of(A).mkdir(parents=True)
    (node.files.of(A) / "wanted.json").write_text(text)
    node.supervisor.look()
    assert node.files.ready(A) is None


@pytest.mark.slow
async def test_the_process_does_all_that(node: Node) -> None:
    """The agent's side waits for it, in the thread that changes hardware."""
    files = MpsFolder(node.files.path, boot=boot_id())
    control = NvmlControl(driver_root=None, mps=files)
    task = asyncio.create_task(mps.run(node.files.path.parent, None, health_port=0, path=node.path))
    for server in (HALF, Server()):
        await asyncio.to_thread(control.start_mps, A, server)
        assert node.of(A).alive()
        await asyncio.to_thread(control.stop_mps, A)
        assert not node.of(A).alive()
    await asyncio.to_thread(control.start_mps, A, HALF)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert files.ready(A) is None


# In the shell's words: of an interpreter below /tmp, such as that of a checkout there, nothing can be seen any more.
MOUNTS = "echo $(ls /tmp) : $(ls /tmp/nvidia-mps) : $(ls /tmp/nvidia-log) : $(ls /dev/shm); touch /tmp/nvidia-mps/made"


def test_a_program_of_the_drivers_finds_its_folders_at_short_paths_and_nobody_else_sees_them(tmp_path: Path) -> None:
    for name in ("pipe", "log", "shm"):
        (tmp_path / "gpu" / name).mkdir(parents=True)
        (tmp_path / "gpu" / name / f"in-{name}").touch()
    command = [sys.executable, "-I", enter.__file__, "/", str(tmp_path / "gpu")]
    done = subprocess.run(
        [*command, "/bin/sh", "-c", MOUNTS], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    if "Operation not permitted" in done.stderr:
        needs.missing("no right to mount")
    assert done.stdout == "nvidia-log nvidia-mps : in-pipe : in-log : in-shm\n", done.stderr
    assert (tmp_path / "gpu/pipe/made").exists()
    assert not os.path.ismount(tmp_path / "gpu/shm")


def test_its_command_line_is_one_of_the_drivers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mps", "--help"])
    assert ended.value.code == 0
    assert "--driver-root" in capsys.readouterr().out
