"""The files that containers of prepared claims read, such as NCCL's; one folder for each claim, used by ``Ledgers``."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from dradriver.node import atomic_files, selinux
from dradriver.node.claims.checkpoint import checked_uid, is_uid


class Mounted:
    """The files that containers of claims read: one folder for each claim.

    The caller holds the node's lock, a file lock that all agents on this node share, around every method except
    ``path``. The agent's state folder has the same path in the agent's pod as on the host, because the container
    runtime needs the host's path.

    Writes do not wait for the disk. A power cut may lose the files, but then the claim is prepared again before its
    containers start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, uid: str, name: str) -> str:
        """Return the path on the host of a file that is mounted for a claim.

        Raises:
            ClaimError: The uid cannot be a file name.
        """
        return str(self._of(uid) / name)

    def write(self, uid: str, content: Mapping[str, bytes]) -> None:
        """Write the files that are mounted for a claim.

        Args:
            uid: The claim's uid.
            content: The content of each file, by name.

        Raises:
            OSError: A file could not be written.
        """
        for name, data in content.items():
            self._of(uid).mkdir(parents=True, exist_ok=True)
            atomic_files.write(self._of(uid) / name, data, durable=False)
            selinux.label(self._of(uid) / name)

    def read(self, uid: str) -> list[bytes]:
        """Return the contents of a claim's mounted files, without files that cannot be read."""
        contents = []
        for path in self._of(uid).glob("*"):
            with contextlib.suppress(OSError):
                contents.append(path.read_bytes())
        return contents

    def remove(self, uid: str) -> None:
        """Remove the files that are mounted for a claim; a claim without files is no error.

        Raises:
            OSError: A file could not be removed.
        """
        folder = self._of(uid)
        for path in folder.glob("*"):
            atomic_files.remove(path, durable=False)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()

    def sweep(self, *, keep: Collection[str]) -> None:
        """Remove the mounted files of all claims except those with the uids ``keep``.

        Temporary files that a killed agent left are removed, too.

        Raises:
            OSError: A file could not be removed.
        """
        for path in self._folder.glob(f"*/*{atomic_files.TEMPORARY}"):
            atomic_files.remove(path, durable=False)
        for folder in self._folder.glob("*"):
            if folder.name not in keep and is_uid(folder.name) and folder.is_dir():
                self.remove(folder.name)

    def _of(self, uid: str) -> Path:
        return self._folder / checked_uid(uid)
