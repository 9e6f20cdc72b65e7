"""Facts that could not be read from a machine: the agent logs each, and the reading continues."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """A fact that could not be read, or that contradicts another fact.

    Attributes:
        where: ``GPU 3``, ``GPU 0 - GPU 3``, ``GPU 3 link 5``, ``NIC mlx5_0`` or ``machine``.
        what: Name of the query or of the fact.
        said: The answer to the query, and the value that is used instead.
    """

    where: str
    what: str
    said: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.said}"


def log_changes(logger: logging.Logger, before: Collection[Problem], now: Collection[Problem]) -> None:
    """Log each problem that is new in a reading, and each problem that is over."""
    for problem in now:
        if problem not in before:
            logger.warning("%s", problem)
    for problem in before:
        if problem not in now:
            logger.info("no more: %s", problem)
