"""NVIDIA's container toolkit that the image brings, for hosts that have none that works.

``nvidia-ctk`` runs in the agent's container and looks at the host's files below ``--host-root``. Hooks are run by the
container runtime, on the host: their programs need no library of the host's, and are copied to a folder of the agent's
there, one for each build. A folder stays as long as the base specification names it, and a while longer, for containers
that are being made by what it said before.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Final

from dradriver.node import files
from dradriver.node.discovery.nvidia.ctk import Toolkit

PROGRAM: Final = "nvidia-ctk"
HOOK: Final = "nvidia-cdi-hook"
LDCONFIG: Final = "ldconfig"  # glibc's: what the hook fills a container's cache with; not every host has one
STAYS_S: Final = 3600.0
# It would load the driver's library, which a program without libraries cannot: it serves the variables
# NVIDIA_GPU_MEMORY_LIMIT and _REQUEST of toolkits from 1.20 on, which are no way of ours to limit anything.
_WITHOUT: Final = "apply-cuda-memory-limits"
_DIGITS: Final = 16


class OwnToolkit:
    """The toolkit in a folder of the image, and the copies of its hooks' programs on the host."""

    def __init__(self, folder: Path, *, copies: Path, host_root: Path) -> None:
        """No file is touched.

        Args:
            folder: Where the image has it.
            copies: The folder for copies, at the host's path.
            host_root: Where the host's file system is.
        """
        self._folder = folder
        self._copies = copies
        self._host = "" if host_root == Path("/") else str(host_root)

    def ready(self) -> Toolkit:
        """Return it, with its hooks' programs on the host.

        Raises:
            OSError: They cannot be put there, or nothing there may be run.
        """
        at = self._at()
        at.mkdir(parents=True, exist_ok=True)
        if os.statvfs(at).f_flag & os.ST_NOEXEC:
            raise OSError(errno.EACCES, "no program may be run there (noexec)", str(at))
        for name in (HOOK, LDCONFIG):
            if not _same(self._folder / name, at / name):
                _copy(self._folder / name, at / name)
        os.utime(at)  # it is needed from now on, whoever tidies
        options = (f"--ldconfig-path={at / LDCONFIG}", f"--disable-hook={_WITHOUT}")
        return Toolkit(str(self._folder / PROGRAM), Path("/"), str(at / HOOK), self._host, options)

    def named(self, specification: Path) -> bool:
        """Return whether a specification has containers run the hooks of any build."""
        return bool(self._named(specification))

    def outdated(self, specification: Path) -> bool:
        """Return whether a specification has containers run the hooks of another build."""
        with contextlib.suppress(OSError):
            return not self._named(specification) <= {self._at().name}
        return False

    def tidy(self, specification: Path) -> None:
        """Remove copies of other builds that a specification has not named for a while."""
        with contextlib.suppress(OSError):
            if time.time() - specification.stat().st_mtime < STAYS_S:
                return
            keep = self._named(specification) | {self._at().name}
            for folder in self._copies.iterdir():
                if folder.name not in keep and time.time() - folder.stat().st_mtime >= STAYS_S:
                    shutil.rmtree(folder)

    def _at(self) -> Path:
        """Return the folder of this build's copies."""
        digest = hashlib.sha256()
        for name in (HOOK, LDCONFIG):
            digest.update(_digest(self._folder / name))
        return self._copies / digest.hexdigest()[:_DIGITS]

    def _named(self, specification: Path) -> set[str]:
        """Return the names of the folders with copies that a specification names."""
        with contextlib.suppress(OSError):
            texts = specification.read_text(errors="replace").split(f"{self._copies}/")
            return {text[:_DIGITS] for text in texts[1:]}
        return set()


def _copy(source: Path, to: Path) -> None:
    fresh = to.with_name(to.name + files.TEMPORARY)
    shutil.copyfile(source, fresh)
    fresh.chmod(0o755)
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    files.move(fresh, to)


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.access(other, os.X_OK) and _digest(one) == _digest(other)
    return False


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
