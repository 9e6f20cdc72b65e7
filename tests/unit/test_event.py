"""Events: who is called, and in which order."""

from __future__ import annotations

from dradriver.event import Event


def test_subscribers_are_called_in_the_order_in_which_they_subscribed() -> None:
    event: Event[[str]] = Event()
    event("before anybody subscribed")
    calls: list[tuple[int, str]] = []
    event.add(lambda text: calls.append((1, text)), lambda text: calls.append((2, text)))
    event.add(lambda text: calls.append((3, text)))
    event("a")
    assert calls == [(1, "a"), (2, "a"), (3, "a")]
