"""The ``/dev/shm`` that all clients of one MPS daemon share: removes files that ended clients left.

A file does not say which client made it. So each check records which containers use the file. A container uses it if a
process of the container has this ``/dev/shm`` and has the file open or mapped. The file is removed after all of these
containers have ended, if no process uses the file.

Two things stay until the daemon ends:

* A file that no check saw in use: a running client may have made and closed it.
* A folder: clients can nest folders deeper than this code could follow.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

_NEW_S: Final = 1.0  # between two looks for those who hold a new file
_ALL_S: Final = 10.0  # between two looks at all files
_REST: Final = 10  # times as long as a look takes: clients may make it long
_MOST: Final = 1 << 26  # bytes of one process's list of mappings, or of mounts
_MOUNTED: Final = re.compile(rb"^\d+ \d+ (\d+:\d+) \S+ /dev/shm ", re.MULTILINE)  # proc_pid_mountinfo(5)


class _Client(msgspec.Struct):
    """A container and the files that its processes use now: mapped files by inode number, open files by name."""

    mapped: set[int] = msgspec.field(default_factory=set)
    opened: set[str] = msgspec.field(default_factory=set)


class SharedFolder:
    """The ``/dev/shm`` folder that all clients of one MPS daemon share."""

    def __init__(
        self, folder: Path, *, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Store the arguments; read nothing yet.

        Args:
            folder: The folder at which the clients' ``/dev/shm`` is mounted.
            proc: The host's ``/proc``, with all processes of the host.
            clock: Returns seconds that never go back.
        """
        self._folder = folder
        self._proc = proc
        self._clock = clock
        self._owners: dict[int, set[int]] = {}  # by inode: mount namespaces of containers that held the file
        self._next_s = self._all_s = clock()

    def tidy(self, daemon: Collection[int]) -> list[str]:
        """Remove from the shared ``/dev/shm`` the files that ended MPS clients left; return their names.

        A file is removed if containers have used it and all of them have ended. The method often does nothing: the
        slower a check of all processes is, the longer the pause until the next check.

        Args:
            daemon: Pids of the daemon and its servers, which keep files open for their clients.

        Raises:
            OSError: The folder cannot be read.
        """
        began_s = self._clock()
        if began_s < self._next_s:
            return []
        self._next_s = began_s + _NEW_S

        # Known files need a look only now and then (``_all_s``), new ones at once. ``_owners`` is by inode.
        files = self._files()
        if not files or (began_s < self._all_s and files.keys() <= self._owners.keys()):
            return []
        clients = self._clients()
        daemon_namespaces = {namespace for pid in daemon if (namespace := self._mount_namespace(pid))}
        owners, removed = {}, []
        for inode, name in files.items():
            # All by mount namespace, which stands for a container.
            users = {
                namespace for namespace, client in clients.items() if inode in client.mapped or name in client.opened
            }
            users_ever = (self._owners.get(inode, set()) | users) - daemon_namespaces
            # Containers used it, none does now, and all that ever did have ended.
            if users_ever and not users and not users_ever & clients.keys():
                self._remove(name, inode)
                removed.append(name)
            else:
                owners[inode] = users_ever
        self._owners = owners
        ended_s = self._clock()
        self._next_s = ended_s + max(_NEW_S, _REST * (ended_s - began_s))
        self._all_s = ended_s + _ALL_S
        return removed

    def _files(self) -> dict[int, str]:
        """Return the names of all entries of the folder that are not folders, by inode number."""
        with os.scandir(self._folder) as entries:
            return {entry.inode(): entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)}

    def _remove(self, name: str, inode: int) -> None:
        path = self._folder / name
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_ino == inode:
                path.unlink()

    def _clients(self) -> dict[int, _Client]:
        """Return the containers that have this ``/dev/shm``, by their mount namespace.

        This method reads only ``/proc``. To open a path in a container may hang, for example on a volume with a lost
        server.
        """
        device = os.stat(self._folder).st_dev
        clients: dict[int, _Client] = {}
        for pid in (int(path.name) for path in self._proc.iterdir() if path.name.isdecimal()):
            process = self._proc / str(pid)
            with contextlib.suppress(OSError):  # it is over
                if _shared(process / "mountinfo") == device and (namespace := self._mount_namespace(pid)):
                    client = clients.setdefault(namespace, _Client())
                    client.mapped |= _mapped(process / "maps", device)
                    client.opened |= _opened(process / "fd")
        return clients

    def _mount_namespace(self, pid: int) -> int:
        """Return the id of a process's mount namespace; 0 if the process has ended.

        All processes of a container have the same mount namespace.
        """
        with contextlib.suppress(OSError):
            return (self._proc / str(pid) / "ns/mnt").stat().st_ino
        return 0


def _shared(path: Path) -> int:
    """Return the device number of the file system that a process has as ``/dev/shm``; 0 if it has none.

    ``path`` is the process's file in ``/proc`` that lists its mounts.
    """
    with path.open("rb") as file:
        found = _MOUNTED.findall(file.read(_MOST))  # the last one covers those before
    return os.makedev(*map(int, found[-1].split(b":"))) if found else 0


def _mapped(path: Path, device: int) -> set[int]:
    """Return the inode numbers of the files of one file system that a process has mapped.

    Args:
        path: The process's file ``maps`` in ``/proc`` (proc_pid_maps(5)).
        device: The device number of the file system.
    """
    number = f"{os.major(device):02x}:{os.minor(device):02x}".encode()
    with path.open("rb") as file:
        lines = [line.split(maxsplit=5) for line in file.read(_MOST).splitlines()]
    return {int(words[4]) for words in lines if len(words) > 4 and words[3] == number}


def _opened(folder: Path) -> set[str]:
    """Return the names of a process's open files, without their folders.

    The function reads the links in ``folder``, the process's ``fd`` folder in ``/proc``. It does not follow them,
    because that may hang.
    """
    names = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                names.add(os.readlink(entry.path).rpartition("/")[2])
    return names
