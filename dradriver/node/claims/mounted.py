"""The files of a claim that its containers read: one folder a claim, below the agent's own state.

The state is mounted into the agent's pod at the host's own path, which is what the container runtime needs. The files
are not waited for until a disk has them: they serve containers of this boot, and a claim of an earlier boot is prepared
anew before a container of it starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from dradriver.node import files, selinux
from dradriver.node.claims.checkpoint import checked_uid, is_uid


class Mounted:
    """The folder of claims' folders. The caller holds the node's lock around every method but ``path``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, uid: str, name: str) -> str:
        """Return where a claim's file is on the host.

        Raises:
            ClaimError: The uid cannot be a file's name.
        """
        return str(self._of(uid) / name)

    def write(self, uid: str, content: Mapping[str, bytes]) -> None:
        """Make the claim have these files.

        Raises:
            OSError: One was not written.
        """
        for name, data in content.items():
            self._of(uid).mkdir(parents=True, exist_ok=True)
            files.write(self._of(uid) / name, data, durable=False)
            selinux.label(self._of(uid) / name)

    def remove(self, uid: str) -> None:
        """Make the claim have none.

        Raises:
            OSError: One is still there.
        """
        folder = self._of(uid)
        for path in folder.glob("*"):
            files.remove(path, durable=False)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()

    def sweep(self, *, keep: Collection[str]) -> None:
        """Remove the files of all other claims, and what a killed writer left; what is no claim's folder stays.

        Raises:
            OSError: One is still there.
        """
        for path in self._folder.glob(f"*/*{files.TEMPORARY}"):
            files.remove(path, durable=False)
        for folder in self._folder.glob("*"):
            if folder.name not in keep and is_uid(folder.name) and folder.is_dir():
                self.remove(folder.name)

    def _of(self, uid: str) -> Path:
        return self._folder / checked_uid(uid)
