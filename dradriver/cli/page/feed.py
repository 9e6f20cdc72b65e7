"""The feed of the page: the pieces that each reader has not received yet.

A *piece* is a part of the page, as JSON, that changes independently. A reader sends the mark that it got last: a text
with the feed and the version of its pieces. A slow reader gets only the newest content of each piece, so no queue
builds up.
"""

from __future__ import annotations

import asyncio
import gzip
import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.cli.page.page_pieces import Pieces, encoder

_MOST_GONE: Final = 4096  # names of pieces that went; a reader from before the oldest of them begins anew


class Feed:
    """The current pieces of the page, each with the version in which it last changed.

    A piece is a part of the page, as JSON, that changes independently.

    Attributes:
        version: The newest version; 0 before the first piece.
    """

    def __init__(self) -> None:
        self.version = 0
        self._epoch = secrets.token_hex(4)
        self._pieces: dict[str, tuple[int, bytes]] = {}  # what changed last is last
        self._gone: dict[str, int] = {}
        self._oldest = 0
        self._changed = asyncio.Event()
        self._delta: tuple[tuple[int, int], bytes] = ((-1, -1), b"")
        self._whole: tuple[int, bytes] = (-1, b"")

    def publish(self, nodes: Mapping[str, bytes | None], others: Pieces) -> None:
        """Put pieces of the page into the feed: those of changed nodes, and all others.

        In ``nodes``, None stands for a node that is gone. Pieces that are missing in ``others`` are removed.
        """
        gone = [key for key in self._pieces if not key.startswith("node/") and key not in others]
        self._take({f"node/{name}": piece for name, piece in nodes.items()} | others | dict.fromkeys(gone))

    def say(self, key: str, piece: bytes) -> None:
        """Put one piece of the page, a part of it as JSON, into its feed."""
        self._take({key: piece})

    def _take(self, pieces: Mapping[str, bytes | None]) -> None:
        version = self.version + 1
        for key, piece in pieces.items():
            if piece == self._pieces.get(key, (0, None))[1]:
                continue
            self.version = version
            self._pieces.pop(key, None)
            self._gone.pop(key, None)
            if piece is None:
                self._gone[key] = version
            else:
                self._pieces[key] = version, piece
        while len(self._gone) > _MOST_GONE:
            self._oldest = self._gone.pop(next(iter(self._gone)))
        if self.version == version:
            self._changed.set()
            self._changed = asyncio.Event()

    def read(self, mark: str) -> int | None:
        """Return the version in a mark, the text by which a reader says which pieces it has.

        The result is None if the mark is of another feed or too old.
        """
        epoch, _, number = mark.partition(".")
        if epoch != self._epoch or not number.isascii() or not number.isdigit() or len(number) > 12:
            return None
        return int(number) if self._oldest <= int(number) <= self.version else None

    def mark(self) -> str:
        """Return the mark for a reader that has all pieces: a text with the feed and its newest version."""
        return f"{self._epoch}.{self.version}"

    def since(self, version: int) -> bytes:
        """Return the page's pieces that changed after a version, as one line of JSON."""
        asked = version, self.version
        if self._delta[0] != asked:
            self._delta = asked, self._encode(version)
        return self._delta[1]

    def whole(self) -> bytes:
        """Return all pieces in the page's feed as JSON, compressed by gzip."""
        if self._whole[0] != self.version:
            self._whole = self.version, gzip.compress(self._encode(0), 5)
        return self._whole[1]

    async def news(self, version: int) -> None:
        """Wait until the feed has a piece that is newer than a version."""
        while self.version <= version:
            await self._changed.wait()

    def _encode(self, version: int) -> bytes:
        fresh: dict[str, msgspec.Raw] = {}
        for key in reversed(self._pieces):
            changed, piece = self._pieces[key]
            if changed <= version:
                break
            fresh[key] = msgspec.Raw(piece)
        gone = [key for key, changed in self._gone.items() if changed > version] if version else []
        return encoder.encode({"mark": self.mark(), "set": fresh, "gone": gone})
