"""A node's folder for MPS, with supervisors that come and go and a stand-in for NVIDIA's program."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from dradriver.node.errors import SetupError
from dradriver.node.mps.daemon import Daemon
from dradriver.node.mps.mps_files import MpsFolder, Server
from dradriver.node.mps.supervisor import Supervisor
from tests.fakes import mps_control
from tests.fakes.node import short_folder

A, B = (f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in range(2))
HALF = Server(memory_mib=40_000, thread_percentage=50)


def look(supervisor: Supervisor) -> None:
    for name, wanted in supervisor.wanted().items():
        supervisor.look(name, wanted)


class Node:
    """A node's folder for MPS, and supervisors that come and go."""

    def __init__(self, root: Path) -> None:
        self.files = MpsFolder(root / "mps", boot="b")
        self.path = mps_control.write(root / "bin")
        self.now = 0.0
        self.supervisor = self.another()

    def look(self) -> None:
        look(self.supervisor)

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


@contextlib.contextmanager
def standing() -> Iterator[Node]:
    """Give a node, and leave none of its daemons."""
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
