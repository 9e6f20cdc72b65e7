"""A client that is root of its container and writes into the folder that it shares with the MPS daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dradriver.node.errors import SetupError
from dradriver.node.mps import daemon as daemons
from dradriver.node.mps.supervisor import CHECK_S
from tests.fakes.mps_node import HALF, A, B, Node, alive


@pytest.mark.slow
def test_folders_that_a_client_makes_disturb_no_other(node: Node) -> None:
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_tenants_process_that_is_called_so_is_no_daemon_of_ours(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_says_without_end_is_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.files.want(A, HALF)
    node.look()
    monkeypatch.setattr(daemons, "_CALL_S", 600.0)
    with (
        answering(node, A, b"x" * 65536, times=1 << 30),
        pytest.raises(SetupError, match="says more than 65536 bytes"),
    ):
        node.of(A).ask("get_server_list")
