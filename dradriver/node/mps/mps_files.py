"""What the agent and the MPS process tell each other of a GPU, in files of one folder.

The agent writes ``wanted.json`` while a share of the GPU is prepared, and removes it after the last; the process that
runs control daemons answers with ``ready.json`` while the daemon serves as wanted, and without it once it is gone. So
either can be restarted without the other, and the daemon, whose end would be its clients', belongs to neither upgrade.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from dradriver.node import atomic_files
from dradriver.node.errors import SetupError

_WANTED: Final = "wanted.json"
_READY: Final = "ready.json"
SHM_MIB: Final = 8192
STALE_S: Final = 60.0  # by an answer so old nothing serves: the process that gave it is gone


class Server(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an MPS server gives each of its clients at most; None is all.

    Attributes:
        memory_mib: Device memory in MiB.
        thread_percentage: Share of the GPU's threads, 1 to 100.
        shm_mib: What the ``/dev/shm`` of all clients together holds, in MiB; None is ``SHM_MIB``.
    """

    memory_mib: int | None = None
    thread_percentage: int | None = None
    shm_mib: int | None = None

    def limits_as(self, other: Server) -> bool:
        """Return whether the MPS limits give each client the same as others do."""
        return (self.memory_mib, self.thread_percentage) == (other.memory_mib, other.thread_percentage)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that is wanted, or that serves.

    Attributes:
        gpu: The GPU's uuid.
        boot: Id of the boot in which it is wanted: no daemon outlives one.
        server: What its clients get at most.
        trouble: In an answer, why it does not serve; empty where it does.
    """

    gpu: str
    boot: str
    server: Server
    trouble: str = ""


class MpsFolder:
    """The folder of all GPUs' folders, at the same path on the host and in every container that works with it."""

    def __init__(self, path: Path, *, boot: str) -> None:
        self.path = path
        self.boot = boot

    def of(self, gpu: str) -> Path:
        """Return the folder of the MPS daemon of a GPU."""
        return self.path / gpu.lower()

    def want(self, gpu: str, server: Server) -> None:
        """Request an MPS daemon for a GPU, with these limits of its clients.

        Raises:
            OSError: The file cannot be written.
        """
        self.of(gpu).mkdir(parents=True, exist_ok=True)
        _write(self.of(gpu) / _WANTED, Wanted(gpu=gpu, boot=self.boot, server=server))

    def want_none(self, gpu: str) -> None:
        """Request the end of a GPU's MPS daemon; none requested is fine.

        Raises:
            OSError: The file is still there.
        """
        atomic_files.remove(self.of(gpu) / _WANTED)

    def wanted(self, gpu: str) -> Wanted | None:
        """Return which MPS daemon is requested for a GPU in this boot; None also if another release wrote it.

        Raises:
            OSError: It cannot be read.
        """
        with contextlib.suppress(SetupError):
            return self._read(self.of(gpu) / _WANTED)
        return None

    def every(self) -> dict[str, Wanted | Exception | None]:
        """Return the requested MPS daemons by folder, or why one cannot be read.

        Raises:
            OSError: The folder cannot be read.
        """
        by_name: dict[str, Wanted | Exception | None] = {}
        for path in sorted(self.path.glob("gpu-*")):
            if path.is_dir():
                try:
                    by_name[path.name] = self._read(path / _WANTED)
                except (SetupError, OSError) as error:
                    by_name[path.name] = error
        return by_name

    def answer(self, wanted: Wanted) -> None:
        """Write that an MPS daemon serves as requested, or what prevents it.

        Raises:
            OSError: The file cannot be written.
        """
        _write(self.of(wanted.gpu) / _READY, wanted)

    def answer_later(self, gpu: str) -> None:
        """Write that an MPS daemon may run from now on, and that it is not known yet whether it serves.

        Raises:
            OSError: The file cannot be written.
        """
        atomic_files.write(self.of(gpu) / _READY, b"{}")

    def answer_none(self, gpu: str) -> None:
        """Write that a GPU has no MPS daemon.

        Raises:
            OSError: The file is still there.
        """
        atomic_files.remove(self.of(gpu) / _READY)

    def forget(self, gpu: str) -> None:
        """Remove the files of an MPS daemon that has ended, except for its log, and the answer last.

        Raises:
            OSError: Something is still there.
        """
        for name in ("pipe", "shm"):
            with contextlib.suppress(FileNotFoundError):
                (self.of(gpu) / name).rmdir()
        self.answer_none(gpu)

    def keep_answer(self, gpu: str) -> bool:
        """Write that the answer about an MPS daemon still holds; return whether there is one.

        Raises:
            OSError: It cannot be changed.
        """
        with contextlib.suppress(FileNotFoundError):
            atomic_files.touch(self.of(gpu) / _READY)
            return True
        return False

    def ready(self, gpu: str) -> Wanted | None:
        """Return the answer about a GPU's MPS daemon; None if there is none in this boot.

        Raises:
            OSError: It cannot be read.
        """
        path = self.of(gpu) / _READY
        with contextlib.suppress(SetupError, FileNotFoundError):
            answer = self._read(path)
            return answer if abs(time.time() - path.stat().st_mtime) < STALE_S else None
        return None

    def ended(self, gpu: str) -> bool:
        """Return whether no MPS daemon of this boot is left.

        Raises:
            OSError: It cannot be read.
        """
        with contextlib.suppress(SetupError):
            return self._read(self.of(gpu) / _READY) is None
        return False

    def _read(self, path: Path) -> Wanted | None:
        """Return what a file of this boot says; None where there is none.

        Raises:
            OSError: It cannot be read.
            SetupError: It is nothing that this release writes.
        """
        try:
            wanted = msgspec.json.decode(path.read_bytes(), type=Wanted)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SetupError(f"{path} is nothing that this release reads: {error}") from error
        return wanted if wanted.boot == self.boot else None


def _write(path: Path, value: Wanted) -> None:
    atomic_files.write(path, msgspec.json.encode(value))
