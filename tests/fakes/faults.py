"""What the fake API server remembers of requests, and what can go wrong with them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, Literal

from tests.fakes.apistore import Object

Mode = Literal["eof", "silence", "half-line", "hang", "drop", "hold"]


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    time: float  # the loop's clock

    @property
    def watch(self) -> bool:
        return self.query.get("watch") in ("1", "true")


@dataclass
class Fault:
    """What happens to requests that match instead of the truth; ``hits`` counts them."""

    times: float
    method: str | None
    path: str
    watch: bool | None
    status: int
    answer: Object | bytes | None
    headers: dict[str, str]
    mode: Mode | None
    lines: list[bytes] | None
    until: asyncio.Event | None
    hits: int = 0

    def matches(self, request: Request) -> bool:
        return (
            self.hits < self.times
            and self.method in (None, request.method)
            and re.search(self.path, request.path) is not None
            and self.watch in (None, request.watch)
        )

    def stop(self) -> None:
        """Let the truth through from now on."""
        self.times = 0
