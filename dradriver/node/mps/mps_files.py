"""The files in which the agent requests MPS daemons, and the MPS process answers; one folder for each GPU.

The agent writes ``wanted.json`` while a share of the GPU is prepared, and removes it after the last share. The MPS
process writes ``ready.json`` while the daemon serves as requested, and removes it after the daemon has ended. So each
process can be restarted without the other. An upgrade of either must not end the daemon, because its clients would end,
too.
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
    """The limits that an MPS server sets for each of its clients; None means no limit.

    Attributes:
        memory_mib: Device memory in MiB.
        thread_percentage: Share of the GPU's threads, 1 to 100.
        shm_mib: Size in MiB of the ``/dev/shm`` of all clients together; None is ``SHM_MIB``.
    """

    memory_mib: int | None = None
    thread_percentage: int | None = None
    shm_mib: int | None = None

    def limits_as(self, other: Server) -> bool:
        """Return whether ``other`` has the same limits for each client; the size of ``/dev/shm`` may differ."""
        return (self.memory_mib, self.thread_percentage) == (other.memory_mib, other.thread_percentage)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The request for an MPS daemon, or the answer to the request.

    Attributes:
        gpu: The GPU's uuid.
        boot: Id of the boot in which the daemon is requested: no daemon survives a reboot.
        server: The limits of the daemon's clients.
        trouble: In an answer: why the daemon does not serve; empty if it serves.
    """

    gpu: str
    boot: str
    server: Server
    trouble: str = ""


class MpsFolder:
    """The parent folder of all GPUs' folders.

    Its path is the same on the host and in every container that uses it.
    """

    def __init__(self, path: Path, *, boot: str) -> None:
        self.path = path
        self.boot = boot

    def of(self, gpu: str) -> Path:
        """Return the folder of the MPS daemon of a GPU."""
        return self.path / gpu.lower()

    def want(self, gpu: str, server: Server) -> None:
        """Write the request for a GPU's MPS daemon, with the limits of its clients.

        Raises:
            OSError: The file cannot be written.
        """
        self.of(gpu).mkdir(parents=True, exist_ok=True)
        _write(self.of(gpu) / _WANTED, Wanted(gpu=gpu, boot=self.boot, server=server))

    def want_none(self, gpu: str) -> None:
        """Remove the request for a GPU's MPS daemon; if there is none, that is no error.

        Raises:
            OSError: The file could not be removed.
        """
        atomic_files.remove(self.of(gpu) / _WANTED)

    def wanted(self, gpu: str) -> Wanted | None:
        """Return the request for a GPU's MPS daemon in this boot; None if there is none.

        The result is also None if another release wrote the request and this release cannot read it.

        Raises:
            OSError: The file cannot be read.
        """
        with contextlib.suppress(SetupError):
            return self._read(self.of(gpu) / _WANTED)
        return None

    def every(self) -> dict[str, Wanted | Exception | None]:
        """Return the requests for MPS daemons of all GPUs, by the name of the GPU's folder.

        The name is the GPU's uuid in lower case. A value is None if the folder has no request, and an exception if the
        request cannot be read.

        Raises:
            OSError: The parent folder cannot be read.
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
        """Write the answer: the MPS daemon serves as requested, or the reason why it does not.

        Raises:
            OSError: The file cannot be written.
        """
        _write(self.of(wanted.gpu) / _READY, wanted)

    def answer_later(self, gpu: str) -> None:
        """Write a preliminary answer: an MPS daemon may run from now on, but does not serve yet.

        Raises:
            OSError: The file cannot be written.
        """
        atomic_files.write(self.of(gpu) / _READY, b"{}")

    def answer_none(self, gpu: str) -> None:
        """Remove the answer. This says that the GPU has no MPS daemon any more.

        Raises:
            OSError: The file could not be removed.
        """
        atomic_files.remove(self.of(gpu) / _READY)

    def forget(self, gpu: str) -> None:
        """Remove the files of an MPS daemon that has ended, except its log; the answer is removed last.

        Raises:
            OSError: A file could not be removed.
        """
        for name in ("pipe", "shm"):
            with contextlib.suppress(FileNotFoundError):
                (self.of(gpu) / name).rmdir()
        self.answer_none(gpu)

    def keep_answer(self, gpu: str) -> bool:
        """Mark the answer as still valid; return whether there is an answer.

        The agent ignores old answers. So this method sets the file's time to now.

        Raises:
            OSError: The file cannot be changed.
        """
        with contextlib.suppress(FileNotFoundError):
            atomic_files.touch(self.of(gpu) / _READY)
            return True
        return False

    def ready(self, gpu: str) -> Wanted | None:
        """Return the answer about a GPU's MPS daemon; None if there is no valid answer.

        An answer is not valid if it is from another boot, too old, or written in a form that this release cannot read.

        Raises:
            OSError: The file cannot be read.
        """
        path = self.of(gpu) / _READY
        with contextlib.suppress(SetupError, FileNotFoundError):
            answer = self._read(path)
            return answer if abs(time.time() - path.stat().st_mtime) < STALE_S else None
        return None

    def ended(self, gpu: str) -> bool:
        """Return whether the GPU has no answer of this boot, which means that it has no MPS daemon any more.

        Raises:
            OSError: The file cannot be read.
        """
        with contextlib.suppress(SetupError):
            return self._read(self.of(gpu) / _READY) is None
        return False

    def _read(self, path: Path) -> Wanted | None:
        """Return the request or answer in a file; None if the file does not exist or belongs to another boot.

        Raises:
            OSError: The file cannot be read.
            SetupError: The content does not have the form that this release writes.
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
