"""What happened, in order: the last events always, all of them when a seed is replayed to be read."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Final

KEPT: Final = 60


class Trace:
    """Lines with their times; ``show`` is called with each at once where it is given."""

    def __init__(self, clock: Callable[[], float], show: Callable[[str], object] | None = None) -> None:
        self._clock = clock
        self._show = show
        self._last: collections.deque[tuple[float, str, tuple[object, ...]]] = collections.deque(maxlen=KEPT)

    def __call__(self, text: str, *values: object) -> None:
        """Note an event; ``values``, or what they return, are put into the text, with %, only if it is read."""
        entry = self._clock(), text, values
        self._last.append(entry)
        if self._show is not None:
            self._show(_line(entry))

    def last(self) -> list[str]:
        return [_line(entry) for entry in self._last]


def _line(entry: tuple[float, str, tuple[object, ...]]) -> str:
    at, text, values = entry
    values = tuple(value() if callable(value) else value for value in values)
    return f"{at:9.3f}  {text % values if values else text}"
