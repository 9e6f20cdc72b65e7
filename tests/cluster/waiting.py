"""Waiting for a condition, always with a deadline."""

import time
from collections.abc import Callable

from tests.cluster.errors import ClusterError


def wait_for(
    what: str,
    condition: Callable[[], bool],
    *,
    seconds: float,
    interval: float = 0.1,
    why: Callable[[], str] = lambda: "",
) -> None:
    """Returns once `condition` is true.

    Args:
        what: What is waited for, for the error.
        condition: Asked again and again; may raise ClusterError to give up early.
        seconds: The deadline.
        interval: The pause between two questions.
        why: Explains a missed deadline.

    Raises:
        ClusterError: The deadline passed.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {seconds:.0f} s. {why()}".rstrip())
        time.sleep(interval)
