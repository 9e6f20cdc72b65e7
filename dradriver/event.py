"""Typed events: an object that changes calls those that subscribed to it, and need not know them.

The object that makes two parts also connects them, after both are made. So neither part gets a callback as an
attribute, and all connections of a process are in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """A change that happens again and again. Subscribers are called at once, in the order in which they subscribed."""

    def __init__(self) -> None:
        """Begin without subscribers."""
        self._listeners: list[Callable[P, object]] = []

    def add(self, *listeners: Callable[P, object]) -> None:
        """Subscribe these functions to the event; they are called after the earlier subscribers."""
        self._listeners += listeners

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all subscribers with these arguments."""
        for listener in self._listeners:
            listener(*args, **kwargs)
