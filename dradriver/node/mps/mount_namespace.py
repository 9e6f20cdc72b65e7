"""Runs a program in a mount namespace with the driver's file system and one MPS daemon's folders.

``python -I mount_namespace.py ROOT FOLDER WORD…`` does these steps:

1. It makes its own mount namespace.
2. It mounts the daemon's ``shm`` at ``/dev/shm``, and its ``pipe`` and ``log`` below an empty ``/tmp``.
3. It makes ROOT its root.
4. It executes the program WORD….

So the program opens the same short paths on every host, because the length of a socket's name is limited. And the
program finds the libraries of the GPU driver, which it needs in the same version.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_TMP: Final = "/tmp"  # noqa: S108  # of mounts that nobody else has
_SHM: Final = "/dev/shm"  # noqa: S108
PIPE: Final = f"{_TMP}/nvidia-mps"
LOG: Final = f"{_TMP}/nvidia-log"

# sched.h and sys/mount.h of Linux
_NEW_MOUNTS: Final = 0x20000
_NOSUID: Final = 2
_NODEV: Final = 4
_NOEXEC: Final = 8
_REMOUNT: Final = 32
_NOSYMFOLLOW: Final = 256  # since Linux 5.10; older ones pass over it
_BIND: Final = 4096
_RECURSIVE: Final = 16384
_SLAVE: Final = 1 << 19
_DETACH: Final = 2


def mount(target: Path, options: str) -> None:
    """Mount an empty file system in memory, which MPS daemons and their clients use together.

    ``options`` are mount options, which limit its size.

    Raises:
        OSError: The file system cannot be mounted.
    """
    _mount("mps", target, "tmpfs", _NOSUID | _NODEV | _NOEXEC, options)


def resize(target: Path, options: str) -> None:
    """Change the limits of a file system that ``mount`` mounted.

    Raises:
        OSError: The files in it need more than the new limit.
    """
    _mount("mps", target, "tmpfs", _REMOUNT | _NOSUID | _NODEV | _NOEXEC, options)


def unmount(target: Path) -> None:
    """Unmount a file system that ``mount`` mounted; if none is mounted there, do nothing.

    A process that has a file of the file system open keeps the file system until the process ends.

    Raises:
        OSError: The file system could not be unmounted.
    """
    while os.path.ismount(target):
        _check(_libc().umount2(os.fsencode(target), _DETACH), target)


def main(argv: list[str]) -> None:
    """Replace this process by a program that runs in a new mount namespace with the driver's file system.

    Args:
        argv: ROOT, FOLDER, and the words of the program's command.
    """
    root, folder, *words = argv
    _check(_libc().unshare(_NEW_MOUNTS), Path("/"))
    _mount("", Path("/"), "", _RECURSIVE | _SLAVE)
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    own = {name: os.open(f"{folder}/{name}", flags) for name in ("shm", "pipe", "log")}
    _bind(own["shm"], root + _SHM)
    _mount("mps", Path(root + _TMP), "tmpfs", _NOSUID | _NODEV)  # which may hide the folder
    for name, place in (("pipe", PIPE), ("log", LOG)):
        os.mkdir(root + place)
        _bind(own[name], root + place)
    os.chroot(root)
    os.chdir("/")
    os.execvp(words[0], words)  # noqa: S606  # the driver's own program, with words of ours


def _mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    names = (os.fsencode(source), os.fsencode(target), os.fsencode(kind))
    _check(_libc().mount(*names, ctypes.c_ulong(flags), options.encode() or None), target)


def _bind(folder: int, target: str) -> None:
    """Mount one of the daemon's folders, given by a file descriptor, at a path.

    A descriptor is safer than a path: clients can put links at the path, and this process, which runs as root, would
    follow them to other files of the host.
    """
    _mount(f"/proc/self/fd/{folder}", Path(target), "", _BIND)
    _mount("", Path(target), "", _BIND | _REMOUNT | _NOSUID | _NODEV | _NOEXEC | _NOSYMFOLLOW)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(returned: int, path: Path) -> None:
    if returned:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


if __name__ == "__main__":
    main(sys.argv[1:])
