"""The namespaces a node lives in, and the processes inside.

A node has its own mounts, network, host name and process ids. Its first process
(`inside.py`) holds all of them: once that ends, the kernel ends every process
inside, containers included, and nothing of mounts or network remains.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.errors import ClusterError, last_lines
from tests.cluster.processes import ProcessId
from tests.cluster.settings import cache_folder
from tests.cluster.waiting import wait_for

_INSIDE = Path(__file__).with_name("inside.py")


class Sandbox:
    """A node's namespaces; all that is known of them is in files below `folder`."""

    def __init__(self, name: str, folder: Path, logs: Path) -> None:
        self.name = name
        self.folder = folder
        self._logs = logs
        self._holder_file = folder / "holder"

    # ---- the namespaces

    def start(self) -> None:
        """Creates the namespaces; returns once the mounts are arranged.

        Raises:
            ClusterError: They could not be arranged.
        """
        self._start(["unshare", "--net"])

    def reboot(self) -> None:
        """Ends every process inside at once, and makes the namespaces anew; only the wires stay plugged in.

        Raises:
            ClusterError: Something inside does not end, or the mounts could not be arranged.
        """
        network = os.open(f"/proc/{self._holder()}/ns/net", os.O_RDONLY)
        try:
            self.kill()
            (self.folder / "ready").unlink()
            for record in (self.folder / "processes").glob("*"):
                record.unlink()
            self._start(["nsenter", f"--net=/proc/self/fd/{network}", "--", "unshare"], fds=[network])
        finally:
            os.close(network)

    def _start(self, unshare: Sequence[str], *, fds: Sequence[int] = ()) -> None:
        for folder in (self.folder / "processes", self._logs):
            folder.mkdir(parents=True, exist_ok=True)
        log = self.log("namespaces")
        command = [*unshare, "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
        command += ["--kill-child=KILL", sys.executable, "-I", str(_INSIDE)]
        command += [str(self.folder), str(cache_folder()), self.name]
        _launch(command, log=log, record=self._holder_file, fds=fds)

        def arranged() -> bool:
            holder = ProcessId.read(self._holder_file)
            if holder is None or not holder.alive():
                raise self.failure("namespaces", "could not be made")
            return (self.folder / "ready").exists()

        wait_for(f"{self.name}: namespaces", arranged, seconds=20, interval=0.02)

    def alive(self) -> bool:
        """Whether the namespaces exist."""
        holder = ProcessId.read(self._holder_file)
        return holder is not None and holder.alive() and (self.folder / "ready").exists()

    def kill(self) -> None:
        """Ends the namespaces and every process inside. Does nothing if there are none.

        Raises:
            ClusterError: Some process inside does not end.
        """
        holder = ProcessId.read(self._holder_file)
        if holder is None:
            return
        inside = _children(holder.pid) if holder.alive() else []
        if holder.alive():
            os.kill(holder.pid, signal.SIGKILL)  # --kill-child takes the first process inside along
        wait_for(
            f"{self.name}: end of its processes",
            lambda: not holder.alive() and not any(process.alive() for process in inside),
            seconds=30,
            interval=0.02,
        )
        self._holder_file.unlink()

    def enter(self, *namespaces: str) -> list[str]:
        """Returns the start of a command line that runs the rest inside.

        Args:
            namespaces: nsenter's names of those to enter; all of them if empty.

        Raises:
            ClusterError: The node is not running.
        """
        pid = self._holder()
        flags = namespaces or ("mount", "net", "uts", "ipc")
        inside = [] if namespaces else [f"--pid=/proc/{pid}/ns/pid_for_children"]
        return ["nsenter", f"--target={pid}", *(f"--{flag}" for flag in flags), *inside, "--"]

    @property
    def first_process(self) -> int:
        """The id, outside, of a process whose namespaces are the node's.

        Raises:
            ClusterError: The node is not running.
        """
        return self._holder()

    # ---- the processes inside

    def log(self, part: str) -> Path:
        """Returns the log file of a part."""
        return self._logs / f"{self.name}-{part}.log"

    def spawn(self, part: str, command: Sequence[str | Path], *, fds: Sequence[int] = ()) -> None:
        """Starts a process that stays; it is known by `part` from then on.

        Args:
            part: Its name, unique on this node.
            command: Its command line.
            fds: Open files it inherits.

        Raises:
            ClusterError: It could not be started.
        """
        _launch(list(map(str, command)), log=self.log(part), record=self._record(part), enter=self.enter(), fds=fds)
        self.check(part)

    def running(self, part: str) -> bool:
        """Whether the part's process runs."""
        process, holder = ProcessId.read(self._record(part)), ProcessId.read(self._holder_file)
        if process is None or holder is None or not self.alive():
            return False
        # Namespaces that end from here on have no process, which is no error of who asks.
        return process.alive(Path(f"/proc/{holder.pid}/root/proc"))

    def stopped_parts(self) -> list[str]:
        """Returns the parts that were started and do not run."""
        records = sorted((self.folder / "processes").glob("*"))
        return [record.name for record in records if not self.running(record.name)]

    def check(self, part: str) -> None:
        """Returns if the part runs.

        Raises:
            ClusterError: It does not; the message has the end of its log.
        """
        if not self.running(part):
            raise self.failure(part, "ended")

    def stop(self, part: str, *, seconds: float = 30) -> None:
        """Ends a part with SIGTERM, after a while with SIGKILL; returns when it is gone.

        Raises:
            ClusterError: It does not end.
        """
        process = ProcessId.read(self._record(part))
        if process is None or not self.running(part):
            return
        try:
            self._signal(process, "TERM")
            wait_for(f"{self.name}: end of {part}", lambda: not self.running(part), seconds=seconds)
        except ClusterError:
            self._signal(process, "KILL")
            wait_for(f"{self.name}: end of {part}", lambda: not self.running(part), seconds=10)

    def failure(self, part: str, what: str) -> ClusterError:
        """Returns an error that tells what happened to a part, with the end of its log."""
        log = self.log(part)
        return ClusterError(f"{self.name}: {part} {what} (log: {log})\n{last_lines(log)}")

    def _signal(self, process: ProcessId, name: str) -> None:
        # From inside, where the id cannot mean a process of the machine.
        subprocess.run(
            [*self.enter(), "kill", f"-{name}", str(process.pid)], capture_output=True, timeout=30, check=False
        )

    def _record(self, part: str) -> Path:
        return self.folder / "processes" / part

    def _holder(self) -> int:
        holder = ProcessId.read(self._holder_file)
        if holder is None or not holder.alive():
            raise ClusterError(f"{self.name} is not running")
        return holder.pid


# The shell keeps the record: it goes on even if we are killed in between. Field 22 is the start time.
_LAUNCH = """
log="$1" record="$2"; shift 2
"$@" >>"$log" 2>&1 </dev/null &
echo "$! $(cut -d ' ' -f 22 /proc/$!/stat)" >"$record"
"""


def _launch(
    command: Sequence[str], *, log: Path, record: Path, enter: Sequence[str] = (), fds: Sequence[int] = ()
) -> None:
    """Starts a process that nobody here is the parent of, so that it outlives us and leaves no zombie.

    Args:
        command: Its command line.
        log: Where its output is added.
        record: The file that will name it.
        enter: What leads into the namespaces it is started in.
        fds: Open files it inherits.
    """
    words = [*enter, "sh", "-c", _LAUNCH, "sh", str(log), str(record), *command]
    with log.open("ab") as out:
        subprocess.run(
            words, stdout=out, stderr=out, pass_fds=fds, start_new_session=True, timeout=30, cwd="/", check=False
        )


def _children(pid: int) -> list[ProcessId]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    found = (ProcessId.of(int(child)) for child in children)
    return [process for process in found if process is not None]
