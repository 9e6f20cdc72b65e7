"""The MPS control daemon of one GPU: NVIDIA's ``nvidia-cuda-mps-control``, which the supervisor runs.

The supervisor sends a command to the daemon by running the program again with one line of text. The program prints the
daemon's answer. It exits with status 0 even if the answer is an error, so the supervisor reads every setting back. The
option ``-d`` starts a daemon. The program then returns before the daemon listens, even if the daemon fails later.

Clients are the programs that use a share. Their containers mount the folders ``pipe`` and ``shm`` and may run as root,
so they can change the files there. The supervisor opens none of these files, not even the daemon's own pid file. Both
folders are separate mounts, which are removed as a whole. Source: NVIDIA's MPS documentation,
"nvidia-cuda-mps-control", and its man page.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from dradriver.node import atomic_files, selinux
from dradriver.node.errors import SetupError
from dradriver.node.mps import mount_namespace, mps_limits
from dradriver.node.mps.mps_files import SHM_MIB, Server
from dradriver.node.mps.shm import SharedFolder

logger = logging.getLogger(__name__)

PROGRAM: Final = "nvidia-cuda-mps-control"
_NAME: Final = "nvidia-cuda-mps"  # of daemon and servers, as the kernel cuts it off
_CALL_S: Final = 10.0
_KILLED_S: Final = 1.0  # that a killed process takes which does not hang in the kernel
_START_S: Final = 5.0
_QUIT_S: Final = 5  # the servers' clients have so long; their claims are gone
_LOOK_S: Final = 0.05
_MOST_SAID: Final = 1 << 16
_MOST_LOG: Final = 16 << 20  # bytes of a log on the host's disk, to which each connection of a client adds lines
_MOST_ENVIRON: Final = 1 << 17
_FOLDERS: Final = ("pipe", "shm")  # file systems in memory


class Daemon:
    """The MPS daemon of one GPU, even if an earlier process of the supervisor started it.

    Attributes:
        folder: Contains ``pipe``, ``log`` and ``shm`` of the daemon.
    """

    def __init__(self, gpu: str, folder: Path, *, root: Path | None, path: str, quit_s: int = _QUIT_S) -> None:
        """Store the arguments; start nothing yet.

        Args:
            gpu: The GPU's uuid.
            folder: The daemon's folder, at the path that it has on the host.
            root: Root of the file system that has the driver's programs; None for this process's own root. If None,
                nothing is mounted.
            path: Folders in which programs are searched, as in the variable ``PATH``.
            quit_s: Seconds that clients have to end when the daemon ends.
        """
        self._gpu = gpu
        self.folder = folder
        self._root = root
        self._path = path
        self._quit_s = quit_s
        pipe, log = (
            (mount_namespace.PIPE, mount_namespace.LOG) if root is not None else (folder / "pipe", folder / "log")
        )
        self._env = {
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(log),
        }
        self._shared = SharedFolder(folder / "shm")
        self._known: _Process | None = None
        self._control: tuple[int, int] | None = None  # the socket that the daemon made to be asked by
        self._hangs: subprocess.Popen[bytes] | None = None  # what was asked last, where it cannot even be killed

    def start(self, server: Server) -> None:
        """Start the MPS daemon with the limits ``server``; if it runs already, set the limits.

        Raises:
            SetupError: The daemon does not start, or does not accept the limits.
            OSError: A folder cannot be created or mounted.
        """
        if not self.alive():
            # What a daemon before this one left would be taken for the new one's.
            self._kill()
            self._clear()
            for name in ("pipe", "log", "shm"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            if self._root is not None:
                for name in _FOLDERS:
                    _mount(self.folder / name, _options(name, server))
            self._control = None
            # ``-d`` returns before the daemon listens.
            self._run(["-d", "-M"])  # -M: else users wait for each other's servers to end
            self._until(self.alive, _START_S, "has not started")
            self._until(lambda: not self.alive() or self._answers(), _START_S, "does not answer")
            if not self.alive():
                raise SetupError(f"MPS of GPU {self._gpu} started and died at once: {self.folder / 'log'}")
        elif self._root is not None:
            self._resize(server)
        self.restore(server)

    def tidy(self) -> None:
        """Remove files that ended clients left in the ``/dev/shm`` of the MPS daemon.

        Raises:
            OSError: The folder cannot be read.
        """
        daemon = [process.pid for process in (*self._servers(), *([self._known] if self._known else []))]
        if removed := self._shared.tidy(daemon):
            message = "GPU %s: removed %d files that clients left in the /dev/shm of its shares: %.200s"
            logger.info(message, self._gpu, len(removed), ", ".join(map(repr, removed)))

    def alive(self) -> bool:
        """Return whether the MPS daemon runs."""
        if self._known is None or not self._known.goes_on():
            own = self._own()
            daemons = [process for process in own if process.parent not in {other.pid for other in own}]
            self._known = min(daemons, key=lambda daemon: daemon.started, default=None)
        return self._known is not None

    def stop(self) -> None:
        """End the MPS daemon and its servers; if none runs, that is no error.

        Raises:
            SetupError: A process does not end.
            OSError: A file or mount could not be removed.
        """
        servers = self._servers()
        with contextlib.suppress(SetupError):
            if self.alive():
                self.ask(f"quit -t {self._quit_s}")
                self._until(lambda: not self.alive(), 2 * self._quit_s, "goes on")
        self._kill(*servers)
        self._clear()

    def restore(self, server: Server) -> list[str]:
        """Set the limits of the MPS daemon and its servers again; a container may have changed them.

        Returns:
            The limits that had been changed; empty if all were unchanged.

        Raises:
            SetupError: The daemon does not answer or does not accept the limits, or a container has replaced the
                daemon's socket.
        """
        self._trim()
        self._refuse_another()
        return mps_limits.hold(self.ask, self._gpu, server)

    def ask(self, line: str) -> str:
        """Send a line of text to the MPS daemon and return its answer.

        Raises:
            SetupError: There is no daemon, or it does not answer.
        """
        return self._run([], f"{line}\n").strip()

    def _answers(self) -> bool:
        try:
            self._refuse_another()
            self.ask("get_server_list")
        except SetupError:
            return False
        return True

    def _refuse_another(self) -> None:
        """Check that the daemon's socket was not replaced by a container; raise if it was.

        The first socket that was seen at the path counts as the daemon's.

        Raises:
            SetupError: There is another socket now, or none.
        """
        socket = self._socket()
        self._control = self._control or socket
        if socket != self._control:
            raise SetupError(f"MPS of GPU {self._gpu}: a container has taken the daemon's socket from its folder")

    def _socket(self) -> tuple[int, int] | None:
        """Return device number and inode number of the socket that clients find; None if there is none.

        A client may have put the socket there.
        """
        with contextlib.suppress(OSError):
            status = os.lstat(self.folder / "pipe" / "control")
            if stat.S_ISSOCK(status.st_mode):
                return status.st_dev, status.st_ino
        return None

    def _trim(self) -> None:
        """Empty log files that have grown too long.

        The daemon then continues to write at its old offset. The gap before this offset uses no disk space.
        """
        for name in ("control.log", "server.log"):
            with contextlib.suppress(OSError):
                path = self.folder / "log" / name
                if path.lstat().st_blocks * 512 > _MOST_LOG:
                    os.truncate(path, 0)

    def _own(self) -> list[_Process]:
        """Return the MPS processes that serve this GPU from this folder: daemons and servers."""
        every = {one.pid: one for one in _processes()}
        # What was asked and cannot be killed is a child of ours; a daemon has left us.
        return [one for one in every.values() if one.parent != os.getpid() and self._owns(one, every.get(one.parent))]

    def _owns(self, process: _Process, parent: _Process | None) -> bool:
        for known in (process, parent):  # a server is its daemon's
            if known in _OWNERS:
                return _OWNERS[known] == self.folder
        env = process.environ()
        if not all(f"{name}={value}".lower().encode() in env for name, value in self._env.items()):
            return False
        for gone in [one for one in list(_OWNERS) if not one.goes_on()]:
            _OWNERS.pop(gone, None)
        _OWNERS[process] = self.folder
        return True

    def _servers(self) -> list[_Process]:
        """Return the MPS servers: the daemon's child processes, even if their environment does not name this GPU."""
        known = self._known if self.alive() else None
        return [] if known is None else [one for one in _processes() if one.parent == known.pid]

    def _kill(self, *servers: _Process) -> None:
        """Kill these servers and all other MPS processes of this GPU, also those of an unknown earlier daemon."""
        more = [] if self._known is None else [self._known]
        left = {*servers, *more, *self._own()}
        for process in left:
            if process.goes_on():
                logger.warning("GPU %s: process %d of MPS did not end and is killed.", self._gpu, process.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        self._until(lambda: not any(process.goes_on() for process in left), _QUIT_S, "cannot be killed")

    def _clear(self) -> None:
        """Remove the files of an ended daemon.

        Otherwise a new daemon would use them as its own.
        """
        for name in _FOLDERS:
            mount_namespace.unmount(self.folder / name)
            for path in (self.folder / name).glob("*"):  # of an agent before there was a mount
                atomic_files.remove(path, durable=False)

    def _resize(self, server: Server) -> None:
        """Set the size of the clients' ``/dev/shm`` as requested.

        If the files in it need more space, the old size stays, and a warning is logged.
        """
        try:
            mount_namespace.resize(self.folder / "shm", _options("shm", server))
        except OSError as error:
            message = "GPU %s: the /dev/shm of its MPS shares cannot be resized to %s MiB: %s"
            logger.warning(message, self._gpu, server.shm_mib or SHM_MIB, error)

    def _run(self, words: Sequence[str], text: str = "") -> str:
        """Run the MPS control program and return its output.

        The output goes to a file, not to a pipe. The program may start a daemon, and the daemon would keep a pipe open.

        Args:
            words: Arguments of the program.
            text: Line for its standard input.

        Raises:
            SetupError: The program is missing, fails, or hangs.
        """
        # A process that could not be killed: no second one is started while it hangs in the driver.
        if self._hangs is not None and self._hangs.poll() is None:
            raise SetupError(f"{PROGRAM} hangs in the driver: process {self._hangs.pid} does not end")
        self._hangs = None

        # With a root of its own the driver's program needs a mount namespace, which a small script makes.
        prefix: list[str] = []
        if self._root is not None:
            prefix = [sys.executable, "-I", mount_namespace.__file__, str(self._root), str(self.folder)]
        with tempfile.TemporaryFile() as output:
            command, env = [*prefix, PROGRAM, *words], {"PATH": self._path} | self._env
            try:
                process = subprocess.Popen(  # noqa: S603  # the driver's own program, with words of ours
                    command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=env
                )
            except OSError as error:
                raise SetupError(
                    f"{PROGRAM} cannot be run: {error}. It is a program of the NVIDIA "
                    "driver. Install the driver's compute programs."
                ) from error
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as process_input:
                process_input.write(text.encode())  # does not block: a pipe has room for a line

            # Killing may fail: a process that hangs in the kernel does not end.
            if why := _wait_for_end(process, output):
                process.kill()
                try:
                    process.wait(_KILLED_S)
                except subprocess.TimeoutExpired:
                    self._hangs = process
                raise SetupError(f"{PROGRAM} {why}")
            output.seek(0)
            printed = output.read(_MOST_SAID).decode("utf-8", "replace")
        if process.returncode:
            last = printed.strip().splitlines()[-1:] or ["no word"]
            raise SetupError(
                f"{PROGRAM} {' '.join(words) or text.strip()} failed ({process.returncode}): {last[0][:200]}"
            )
        return printed

    def _until(self, holds: Callable[[], bool], patience_s: float, said: str) -> None:
        until = time.monotonic() + patience_s
        while not holds():
            if time.monotonic() >= until:
                raise SetupError(f"MPS of GPU {self._gpu} {said}: {self.folder / 'log'}")
            time.sleep(_LOOK_S)


def _options(name: str, server: Server) -> str:
    """Return the mount options for one of the daemon's folders; ``name`` is ``pipe`` or ``shm``.

    The options limit the size and the number of inodes, because inodes use kernel memory.
    """
    if name == "pipe":
        return "size=16m,nr_inodes=16k,mode=0755"
    return f"size={server.shm_mib or SHM_MIB}m,nr_inodes=64k,mode=1777"


def _mount(folder: Path, options: str) -> None:
    """Mount a daemon's folder, with the SELinux label of containers if SELinux is on."""
    try:
        mount_namespace.mount(folder, options + selinux.mount_option())
    except OSError as error:
        if error.errno != errno.EINVAL or not selinux.enabled():
            raise
        selinux.unlabelled(folder, error)
        mount_namespace.mount(folder, options)


def _wait_for_end(process: subprocess.Popen[bytes], output: IO[bytes]) -> str:
    """Wait until a process has ended; return an empty text, or the reason why this function stopped waiting.

    A client can take over the daemon's socket and send answers without end. So the size of the output, which is a file
    on a disk, is limited.
    """
    until = time.monotonic() + _CALL_S
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return ""
        if os.fstat(output.fileno()).st_size > _MOST_SAID:
            return f"says more than {_MOST_SAID} bytes"
    return f"has not answered for {_CALL_S:.0f} s"


@dataclasses.dataclass(frozen=True)
class _Process:
    """An MPS process: its pid, its start time and its parent.

    The start time distinguishes it from a later process with the same pid.
    """

    pid: int
    parent: int = dataclasses.field(compare=False)
    started: int

    def goes_on(self) -> bool:
        now = _process(self.pid)
        return now is not None and now.started == self.started

    def environ(self) -> list[bytes]:
        """Return the environment variables with which the process was started, in lower case; empty if it has ended."""
        with contextlib.suppress(OSError), Path(f"/proc/{self.pid}/environ").open("rb") as file:
            return file.read(_MOST_ENVIRON).lower().split(b"\0")
        return []


# By the daemon's folder: who is known is not asked again, for of a process that hangs even that may hang.
_OWNERS: Final[dict[_Process, Path]] = {}


def _processes() -> list[_Process]:
    """Return the MPS processes of this container, even if an earlier supervisor process started them.

    A tenant's process can have the same program name, but it has another control group. Daemons end with the container.
    """
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    processes = [process for pid in pids if (process := _process(pid)) is not None]
    own = _cgroup("self") if processes else b""
    return [process for process in processes if _cgroup(process.pid) == own]


def _cgroup(process: int | str) -> bytes:
    """Return a process's control groups as the kernel lists them; empty if it has ended."""
    with contextlib.suppress(OSError), Path(f"/proc/{process}/cgroup").open("rb") as file:
        return file.read(_MOST_SAID)
    return b""


def _process(pid: int) -> _Process | None:
    """Return the MPS process with a pid; None if the pid is not an MPS process, or has ended."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        name, _, rest = status.partition("(")[2].rpartition(")")
        words = rest.split()  # from the third field on, proc_pid_stat(5)
        if name.startswith(_NAME) and words[0] not in ("Z", "X"):
            return _Process(pid, int(words[1]), int(words[19]))
    return None
