"""Typed events: an object calls its subscribers when it changes, without knowing them.

The code that creates two objects also subscribes a method of one object to the event of the other. So no object gets a
callback as an attribute, and all connections of a process are in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """The functions to call when an object changes; not a Kubernetes Event.

    The object that changes calls the ``Event`` itself, at each change.
    """

    def __init__(self) -> None:
        """Create an event without subscribers."""
        self._listeners: list[Callable[P, object]] = []

    def add(self, *listeners: Callable[P, object]) -> None:
        """Subscribe functions (``listeners``) to the event; they are called after the earlier subscribers."""
        self._listeners += listeners

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all subscribers with these arguments, at once and in the order of subscription."""
        for listener in self._listeners:
            listener(*args, **kwargs)
