"""Entries that could go on but for something that many of them wait for."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from dradriver.api.pins import Key


class Kind(enum.Enum):
    """What is waited for."""

    WRITER = enum.auto()  # a slot of the limiter
    NAMESPACE = enum.auto()  # an end of slow writes in a namespace
    SCHEDULER = enum.auto()  # a scheduler that is behind with its work


class Cause(NamedTuple):
    """What is waited for, and the name of it where there are several."""

    kind: Kind
    name: str = ""


class Parking:
    """Keys by what they wait for, first come, first served."""

    def __init__(self) -> None:
        self._lots: dict[Cause, OrderedDict[Key, None]] = {}

    def park(self, key: Key, cause: Cause) -> None:
        """Let an entry wait."""
        self._lots.setdefault(cause, OrderedDict())[key] = None

    def release(self, over: Callable[[Cause], bool]) -> Key | None:
        """Return the first entry whose cause is over, and forget that it waited; None where there is none."""
        for cause, lot in self._lots.items():
            if over(cause):
                key, _ = lot.popitem(last=False)
                if not lot:
                    del self._lots[cause]
                return key
        return None
