"""Files that somebody else replaces while a process runs, as the kubelet does those of a ConfigMap or Secret."""

from __future__ import annotations

import abc
import asyncio
import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

PERIOD_S: Final = 5.0  # the kubelet takes a minute or so to bring a change


class Followed(abc.ABC):
    """Files that are looked at every few seconds, and taken together when their content has changed.

    The kubelet replaces the files of a volume behind a symbolic link, so that their times and inodes say nothing, and
    that between two reads they may be of two versions: content that ``take`` refuses is looked at again.
    """

    def __init__(self, *files: Path, what: str) -> None:
        """Read nothing yet.

        Args:
            files: In the order in which ``take`` wants them.
            what: What they are, for the log.
        """
        self._files = files
        self._what = what
        self._taken: tuple[bytes, ...] | None = None

    @abc.abstractmethod
    def take(self, contents: tuple[bytes, ...]) -> None:
        """Use what the replaced files hold now.

        Raises:
            OSError, UnicodeDecodeError: They cannot be used; what was taken before goes on.
        """

    async def run(self) -> None:
        """Run ``look`` at the replaced files every few seconds for ever; only an error that is new is logged."""
        last = ""
        while True:
            try:
                await self.look()
                last = ""
            except (OSError, UnicodeDecodeError) as error:
                if str(error) != last:
                    logger.warning("%s: %s", self._what, error)
                last = str(error)
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Run ``step`` for the replaced files; a class that has more to do after it does that here, too."""
        self.step()

    def step(self) -> None:
        """Take what the replaced files hold, if it was not taken yet.

        Raises:
            OSError, UnicodeDecodeError: A file cannot be read, or ``take`` refused; what was taken before goes on.
        """
        contents = self.contents()
        if contents != self._taken:
            self.take(contents)
            self._taken = contents

    def contents(self) -> tuple[bytes, ...]:
        """Return what the replaced files hold now.

        Raises:
            OSError: A file cannot be read.
        """
        return tuple(file.read_bytes() for file in self._files)
