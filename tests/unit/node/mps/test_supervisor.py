"""MPS daemons that do not do as they are told, and what the agent is told of them meanwhile."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dradriver.node import atomic_files
from dradriver.node.devices.control_interface import TIMEOUT
from dradriver.node.errors import HardwareError, SetupError
from dradriver.node.mps.daemon import Daemon
from dradriver.node.mps.mps_files import Server
from dradriver.node.mps.supervisor import CHECK_S, KEEP_S, Supervisor
from dradriver.node.vendors.nvidia.devices.nvml_control import NvmlControl
from tests.fakes.mps_node import HALF, A, B, Node, look


def age(node: Node, gpu: str) -> None:
    """Have so much time go by that an answer which nobody renews is old."""
    os.utime(node.files.of(gpu) / "ready.json", (0, 0))
    node.now += KEEP_S


def refuses_to_stop(node: Node, gpu: str) -> None:
    """Have the agent's wait for the end of a GPU's daemon find that it goes on."""
    with pytest.raises(HardwareError) as caught:
        NvmlControl(driver_root=None, mps=node.files, mps_s=0.0).stop_mps(gpu)
    assert caught.value.code == TIMEOUT


def unending(monkeypatch: pytest.MonkeyPatch, gone: Callable[[], bool]) -> list[str]:
    """Return the folders of the daemons that were to end and did not, as one does that waits in the kernel."""
    tried: list[str] = []
    stop = Daemon.stop

    def fails(self: Daemon) -> None:
        if gone():
            return stop(self)
        tried.append(self.folder.name)
        raise SetupError(f"MPS of GPU {self.folder.name} cannot be killed")

    monkeypatch.setattr(Daemon, "stop", fails)
    return tried


class Unreadable(Daemon):
    """The daemon of a GPU whose /dev/shm of shares cannot be read."""

    def tidy(self) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self.folder / "shm"))


def test_a_dev_shm_that_cannot_be_read_does_not_stop_serving(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.files.want(A, HALF)
    supervisor = Supervisor(
        node.files, lambda gpu, folder: Unreadable(gpu, folder, root=None, path=node.path, quit_s=1)
    )
    for _ in range(3):
        look(supervisor)
    assert node.trouble(A) == ""
    assert caplog.text.count("files of ended clients cannot be removed: [Errno 13] Permission denied") == 1


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_a_daemon_that_cannot_be_killed_has_not_ended(
    known: bool, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.files.want(A, HALF)
    node.look()
    killed: list[str] = []
    tried = unending(monkeypatch, lambda: bool(killed))
    if not known:
        node.supervisor = node.another()
    node.files.want_none(A)
    node.look()
    for _ in range(12):
        assert "cannot be killed" in node.trouble(A)
        refuses_to_stop(node, A)
        age(node, A)
        refuses_to_stop(node, A)  # whoever does not renew it has not seen the end either
        node.look()
    assert len(tried) == 8  # after 1, 2, 4, 8, 16, 30 and 30 seconds at the least, looking every ten
    assert caplog.text.count("cannot be killed") == 1
    killed.append("now")
    node.now += 30.0
    node.look()
    assert (node.files.ready(A), node.files.ended(A), node.of(A).alive()) == (None, True, False)
    node.files.want(A, HALF)
    node.look()
    assert node.trouble(A) == ""
    assert "start -d -M for GPU" in node.log(A)[-7]  # under the GPU's name as the agent wrote it


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
def test_a_hang_is_told_as_long_as_it_lasts(wanted: bool, node: Node) -> None:
    node.files.want(A, HALF)
    node.look()
    if not wanted:
        node.files.want_none(A)
    for _ in range(3):
        node.supervisor.hangs(A.lower(), node.files.wanted(A))
        assert "hangs in the GPU driver" in node.trouble(A)
        if not wanted:
            refuses_to_stop(node, A)
        age(node, A)
    node.look()  # comes back
    assert node.files.ready(A) == node.files.wanted(A)


@pytest.mark.slow
def test_an_answer_that_found_no_room_is_given_when_there_is(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    write, start, full = atomic_files.write, Daemon.start, False

    def filled(path: Path, data: bytes, *, durable: bool = True) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data, durable=durable)

    def fills(self: Daemon, server: Server) -> None:
        nonlocal full
        start(self, server)
        full = True

    node.files.want(A, HALF)
    monkeypatch.setattr(atomic_files, "write", filled)
    monkeypatch.setattr(Daemon, "start", fills)
    node.look()
    assert (node.files.ready(A), node.of(A).alive()) == (None, True)
    full = False
    node.now += 1.0
    node.look()
    assert node.trouble(A) == ""
    (node.files.of(A) / "ready.json").unlink()
    node.now += KEEP_S
    node.look()
    assert node.trouble(A) == ""


def test_a_daemon_that_is_being_started_has_not_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def given_back(*_: object) -> None:
        refuses_to_stop(node, A)
        raise SetupError("is not wanted any more")

    node.files.want(A, HALF)
    assert node.files.ended(A)
    monkeypatch.setattr(Daemon, "start", given_back)
    node.look()
    node.look()
    assert node.files.ended(A)


NEWER = json.dumps({"gpu": A, "boot": "b", "server": {"memory_mib": "40000Mi"}})


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["a folder", '{"x":' * 100_000, NEWER, "{", ""])
def test_a_wish_that_cannot_be_read_leaves_its_daemon_and_all_others_as_they_are(
    odd: str, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for gpu in (A, B):
        node.files.want(gpu, HALF)
    node.look()
    file = node.files.of(A) / "wanted.json"
    file.unlink()
    if odd == "a folder":
        file.mkdir()
    else:
        file.write_text(odd)
    for gpu in (A, B):
        node.kill(gpu)
    node.look()
    assert [(node.trouble(gpu), node.of(gpu).alive()) for gpu in (A, B)] == [("", True)] * 2
    age(node, A)
    node.look()
    assert node.trouble(A) == ""
    assert caplog.text.count("The daemon stays unchanged") == 1
    node.supervisor = node.another()  # which does not know what it was
    node.look()
    assert node.of(A).alive()
    atomic_files.remove(file)
    node.look()
    assert not node.of(A).alive()


@pytest.mark.slow
def test_all_stays_as_it_is_where_the_folder_cannot_be_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.files.want(A, HALF)
    node.look()

    def fails() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(node.files, "every", fails)
    node.kill(A)
    node.look()
    assert (node.trouble(A), node.of(A).alive()) == ("", True)


@pytest.mark.slow
def test_one_that_dies_after_each_start_is_started_ever_more_rarely(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, starts = Daemon.start, list[float]()

    def dies(self: Daemon, server: Server) -> None:
        starts.append(node.now)
        start(self, server)
        os.kill(node.pid(A), signal.SIGKILL)
        self._until(lambda: not self.alive(), 10.0, "goes on")

    node.files.want(A, Server())
    monkeypatch.setattr(Daemon, "start", dies)
    for _ in range(100):
        node.look()
        node.now += 1.0
    assert starts == [0.0, 1.0, 3.0, 6.0, 11.0, 20.0, 37.0, 68.0, 99.0]
    node.look()
    assert "and is started again" in node.trouble(A)
    monkeypatch.undo()
    node.now += 30.0
    node.look()
    assert node.trouble(A) == ""
    node.now += CHECK_S
    node.look()  # it has served for a minute
    for trouble in ("", "the daemon died together with its clients, and is started again"):
        node.kill(A)
        node.look()
        assert node.trouble(A) == trouble


def test_a_surprise_is_told_once_and_tried_ever_more_rarely(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[float] = []

    def odd(*_: object) -> None:
        starts.append(node.now)
        raise ValueError("a bug")

    monkeypatch.setattr(Daemon, "start", odd)
    node.files.want(A, Server())
    for _ in range(20):
        node.look()
        node.now += 1.0
    assert starts == [0.0, 1.0, 3.0, 7.0, 15.0]
    assert caplog.text.count("Traceback") == 1


@pytest.mark.slow
def test_something_else_that_is_wanted_waits_for_no_pause(node: Node) -> None:
    node.say(A, "old")
    node.files.want(A, Server())
    node.look()
    (node.files.of(A) / "old").unlink()
    node.files.want(A, HALF)
    node.look()
    assert node.trouble(A) == ""


@pytest.mark.slow
def test_a_daemon_that_dies_is_started_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.files.want(A, HALF)
    node.look()
    before = node.pid(A)
    node.kill(A)
    node.look()
    assert node.pid(A) != before
    assert (node.trouble(A), node.of(A).ask("get_default_active_thread_percentage")) == ("", "50.0")
    assert f"The MPS daemon of GPU {A} died" in caplog.text


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        assert (ready.server, "hangs in the GPU driver" in ready.trouble) == (server, True)
