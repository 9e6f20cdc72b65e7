"""One GPU's MPS control daemon, with a stand-in for NVIDIA's program: how it starts, is asked, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dradriver.node.errors import SetupError
from dradriver.node.mps import daemon as daemons
from dradriver.node.mps.mps_files import Server
from dradriver.node.mps.supervisor import CHECK_S
from tests.fakes.mps_node import HALF, A, B, Node, alive


@pytest.mark.slow
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


@pytest.mark.slow
def test_each_gpu_has_its_own_and_none_is_set_where_nothing_is_limited(node: Node) -> None:
    for gpu in (A, B):
        node.files.want(gpu, Server())
    node.look()
    assert [node.log(gpu) for gpu in (A, B)] == [[f"start -d -M for {gpu}"] for gpu in (A, B)]
    node.files.want_none(A)
    node.look()
    assert (node.files.ready(A), node.trouble(B), node.of(B).alive()) == (None, "", True)


def test_without_the_program_it_is_said_where_it_comes_from(node: Node) -> None:
    node.path = "/nowhere"
    node.files.want(A, Server())
    node.look()
    assert "It is a program of the NVIDIA driver" in node.trouble(A)


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


@pytest.mark.slow
def test_what_a_daemon_left_that_was_killed_disturbs_nothing(node: Node) -> None:
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
    assert f"process {server} of MPS did not end and is killed" in caplog.text


@pytest.mark.slow
def test_clients_that_are_left_after_the_last_share_are_not_waited_for(node: Node) -> None:
    node.files.want(A, HALF)
    node.look()
    node.of(A).ask("start_server -uid 0")
    node.files.want_none(A)
    node.look()
    assert (node.files.ready(A), node.of(A).alive()) == (None, False)


@pytest.mark.slow
def test_no_call_asks_another_gpus_server_whose_it_is(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.slow
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
    monkeypatch.setattr(daemons, "_CALL_S", 30.0)  # a busy machine has it take its time
    assert daemon.ask("get_server_list") == ""
