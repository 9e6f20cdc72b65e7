"""NVIDIA's container toolkit in the agent's image, for hosts without a working toolkit.

``nvidia-ctk`` runs in the agent's container and reads the host's files below ``--host-root``. A CDI specification names
hooks: programs that the container runtime runs on the host when it starts a container. So the agent copies the hooks'
programs, which need no library of the host, to a folder on the host. Each build of the image has its own folder. A
folder stays as long as the base specification names it, and a while longer for containers that are being created by the
old specification.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dradriver.node import atomic_files
from dradriver.node.vendors.nvidia.discovery.ctk import Toolkit
from dradriver.node.vendors.nvidia.discovery.driver_root import inside

logger = logging.getLogger(__name__)

PROGRAM: Final = "nvidia-ctk"
HOOK: Final = "nvidia-cdi-hook"
LDCONFIG: Final = "ldconfig"  # glibc's: what the hook fills a container's cache with; not every host has one
STAYS_S: Final = 3600.0
# It would load the driver's library, which a program without libraries cannot: it serves the variables
# NVIDIA_GPU_MEMORY_LIMIT and _REQUEST of toolkits from 1.20 on, which are no way of ours to limit anything.
_WITHOUT: Final = "apply-cuda-memory-limits"
_DIGITS: Final = 16


class OwnToolkit:
    """The toolkit in a folder of the image, and the copies of its hook programs on the host."""

    def __init__(self, folder: Path, *, copies: Sequence[Path], host_root: Path) -> None:
        """Store the paths; no file is touched.

        Args:
            folder: The toolkit's folder in the image.
            copies: Folders for the copies, at the host's paths; an earlier folder is preferred.
            host_root: Folder that contains the host's file system.
        """
        self._folder = folder
        self._copies = tuple(copies)
        self._host_root = host_root
        self._host = "" if host_root == Path("/") else str(host_root)
        self._said = ""  # the closed folder that the last warning named

    def ready(self) -> Toolkit:
        """Copy the hook programs of the image's toolkit to the host, and return the toolkit.

        Raises:
            OSError: The programs cannot be copied to any folder, or programs in the folders may not be run.
        """
        # The first folder that everybody on the host can pass; else the first in which the programs can be run at all.
        # Each entry: the closed folder above the copies, empty if there is none, and the copies.
        usable: list[tuple[str, Path]] = []
        wrong: OSError | None = None
        for copies in self._copies:
            try:
                copied = self._copy_programs(copies / self._build())
            except OSError as error:
                wrong = wrong or error
                continue
            closed_folder = self._first_closed_folder(copied)
            if not closed_folder:
                usable = [("", copied)]
                break
            usable.append((closed_folder, copied))
        if not usable:
            raise wrong or OSError(errno.ENOENT, "no folder for the hooks' programs")
        closed_folder, copied = usable[0]
        if closed_folder and closed_folder != self._said:
            logger.warning(
                "Other users of the host cannot read %s, which contains the programs of the CDI hooks. "
                "Pods in a user namespace (hostUsers: false) cannot start.",
                closed_folder,
            )
        self._said = closed_folder
        options = (f"--ldconfig-path={copied / LDCONFIG}", f"--disable-hook={_WITHOUT}")
        return Toolkit(str(self._folder / PROGRAM), Path("/"), str(copied / HOOK), self._host, options)

    def _copy_programs(self, at: Path) -> Path:
        """Copy the hook programs into a folder and return the folder.

        Copies that are correct stay.

        Raises:
            OSError: The programs cannot be copied there, or programs in the folder may not be run.
        """
        at.mkdir(parents=True, exist_ok=True)
        if os.statvfs(at).f_flag & os.ST_NOEXEC:
            raise OSError(errno.EACCES, "no program may be run there (noexec)", str(at))
        for folder in (at, at.parent):  # whatever this process's umask is
            folder.chmod(0o755)
        for name in (HOOK, LDCONFIG):
            if not _same(self._folder / name, at / name):
                _copy(self._folder / name, at / name)
        os.utime(at)  # it is needed from now on, whoever tidies
        return at

    def _first_closed_folder(self, at: Path) -> str:
        """Return the first folder of a path on the host that other users may not enter.

        The text is empty if all folders are open. A hook cannot run from a closed folder if the container has a user
        namespace: the container's own init process runs the hook, and its root has no rights on the host (runc,
        libcontainer/rootfs_linux.go). The kubelet makes its folders with mode 0750, kubeadm with 0700.
        """
        for folder in reversed(at.parents[:-1]):
            there = inside(self._host_root, str(folder).lstrip("/"))
            with contextlib.suppress(OSError):
                if there is not None and not there.stat().st_mode & stat.S_IXOTH:
                    return str(folder)
        return ""

    def named(self, specification: Path) -> bool:
        """Return whether a CDI specification runs hook programs of the image's toolkit.

        The programs can be from this build of the image or any other.
        """
        return bool(self._named(specification))

    def outdated(self, specification: Path) -> bool:
        """Return whether a CDI specification runs hook programs of another build of the image."""
        with contextlib.suppress(OSError):
            return not self._named(specification) <= {self._build()}
        return False

    def tidy(self, specification: Path) -> None:
        """Repair this build's hook programs on the host, and remove copies of other builds.

        Copies that the CDI file ``specification`` names are not removed, nor copies that were used lately.
        """
        with contextlib.suppress(OSError):
            if self._build() in self._named(specification):
                self.ready()
            if time.time() - specification.stat().st_mtime < STAYS_S:
                return
            keep = self._named(specification) | {self._build()}
            for copies in self._copies:
                for folder in copies.iterdir() if copies.is_dir() else ():
                    if folder.name not in keep and time.time() - folder.stat().st_mtime >= STAYS_S:
                        shutil.rmtree(folder, ignore_errors=True)

    def _build(self) -> str:
        """Return the name of the folder with the copies of this build: a digest of the programs."""
        digest = hashlib.sha256()
        for name in (HOOK, LDCONFIG):
            digest.update(_digest(self._folder / name))
        return digest.hexdigest()[:_DIGITS]

    def _named(self, specification: Path) -> set[str]:
        """Return the names of the folders whose hook programs a CDI specification runs."""
        with contextlib.suppress(OSError):
            text = specification.read_text(errors="replace")
            return {part[:_DIGITS] for copies in self._copies for part in text.split(f"{copies}/")[1:]}
        return set()


def _copy(source: Path, to: Path) -> None:
    fresh = to.with_name(to.name + atomic_files.TEMPORARY)
    shutil.copyfile(source, fresh)
    fresh.chmod(0o755)
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    atomic_files.move(fresh, to)


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.access(other, os.X_OK) and _digest(one) == _digest(other)
    return False


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
