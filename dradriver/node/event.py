"""How parts of the agent hear of each other: what happens in one is told to those that asked for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """Something that happens again and again in one part; others are told at once, in the order in which they asked."""

    def __init__(self) -> None:
        """Begin without listeners."""
        self._listeners: list[Callable[P, object]] = []

    def add(self, *listeners: Callable[P, object]) -> None:
        """Add listeners, which are told after those before them."""
        self._listeners += listeners

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell all listeners that it happened."""
        for listener in self._listeners:
            listener(*args, **kwargs)
