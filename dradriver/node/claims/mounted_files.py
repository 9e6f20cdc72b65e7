"""The files that containers of prepared claims read, such as NCCL's: a folder a claim. ``Ledgers`` keeps them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from dradriver.node import atomic_files, selinux
from dradriver.node.claims.checkpoint import checked_uid, is_uid


class Mounted:
    """The files that claims' containers read: one folder a claim. The caller holds the node's lock but for ``path``.

    The agent's state is mounted into its pod at the host's own path, which is what the container runtime needs. The
    files are not waited for until a disk has them: they serve containers of this boot, and a claim of an earlier boot
    is prepared anew before a container of it starts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, uid: str, name: str) -> str:
        """Return where a file that is mounted for a claim is on the host.

        Raises:
            ClaimError: The uid cannot be a file's name.
        """
        return str(self._of(uid) / name)

    def write(self, uid: str, content: Mapping[str, bytes]) -> None:
        """Write the files that are mounted for a claim.

        Raises:
            OSError: One was not written.
        """
        for name, data in content.items():
            self._of(uid).mkdir(parents=True, exist_ok=True)
            atomic_files.write(self._of(uid) / name, data, durable=False)
            selinux.label(self._of(uid) / name)

    def read(self, uid: str) -> list[bytes]:
        """Return the contents of those files that can be read, which are mounted for a claim."""
        contents = []
        for path in self._of(uid).glob("*"):
            with contextlib.suppress(OSError):
                contents.append(path.read_bytes())
        return contents

    def remove(self, uid: str) -> None:
        """Remove the files that are mounted for a claim; none there is fine.

        Raises:
            OSError: One is still there.
        """
        folder = self._of(uid)
        for path in folder.glob("*"):
            atomic_files.remove(path, durable=False)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()

    def sweep(self, *, keep: Collection[str]) -> None:
        """Remove the mounted files of all other claims, and what a killed writer left.

        Raises:
            OSError: One is still there.
        """
        for path in self._folder.glob(f"*/*{atomic_files.TEMPORARY}"):
            atomic_files.remove(path, durable=False)
        for folder in self._folder.glob("*"):
            if folder.name not in keep and is_uid(folder.name) and folder.is_dir():
                self.remove(folder.name)

    def _of(self, uid: str) -> Path:
        return self._folder / checked_uid(uid)
