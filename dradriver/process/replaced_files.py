"""Follows files that another program replaces, as the kubelet replaces the files of a ConfigMap or Secret."""

from __future__ import annotations

import abc
import asyncio
import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

PERIOD_S: Final = 5.0  # the kubelet takes a minute or so to bring a change


class Followed(abc.ABC):
    """Files that are read every few seconds, and used when their content has changed.

    A subclass implements ``take``, which uses the new contents. The kubelet replaces the files of a volume by changing
    a symbolic link. So the files' times and inodes do not show a change; their content is compared. Two files that are
    read one after the other can be of two versions, such as an old certificate with a new key. In this case ``take``
    must raise an error, and the files are read again a few seconds later.
    """

    def __init__(self, *files: Path, what: str) -> None:
        """Store the names of the files; do not read the files yet.

        Args:
            files: The files, in the order in which the method ``take`` gets their contents.
            what: What the files are, for the log.
        """
        self._files = files
        self._what = what
        self._taken: tuple[bytes, ...] | None = None

    @abc.abstractmethod
    def take(self, contents: tuple[bytes, ...]) -> None:
        """Use the new content of the replaced files.

        Raises:
            OSError, UnicodeDecodeError: The content cannot be used; the previous content stays in use.
        """

    async def run(self) -> None:
        """Read the replaced files every few seconds, until cancelled, and use new content.

        An error is logged as a warning. The same error is not logged again until a reading has succeeded.
        """
        last = ""
        while True:
            try:
                await self.look()
                last = ""
            except (OSError, UnicodeDecodeError) as error:
                if str(error) != last:
                    logger.warning("The files of the %s cannot be used: %s", self._what, error)
                last = str(error)
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Read the replaced files once, and use new content (``step``).

        A subclass can override this method to report problems, too.
        """
        self.step()

    def step(self) -> None:
        """Read the replaced files, and use their content if it has changed.

        Raises:
            OSError, UnicodeDecodeError: A file cannot be read, or ``take`` refused the content. The previous content
                stays in use.
        """
        contents = self.contents()
        if contents != self._taken:
            self.take(contents)
            self._taken = contents

    def contents(self) -> tuple[bytes, ...]:
        """Return the present content of the replaced files.

        Raises:
            OSError: A file cannot be read.
        """
        return tuple(file.read_bytes() for file in self._files)
