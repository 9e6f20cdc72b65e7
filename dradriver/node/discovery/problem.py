"""What could not be read of a machine: a line in the log, and never the end of a reading."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be read, or contradicts itself.

    Attributes:
        where: ``GPU 3``, ``GPU 0 - GPU 3``, ``GPU 3 link 5``, ``NIC mlx5_0`` or ``machine``.
        what: Name of the query, or what was looked at.
        said: What came instead, and what was made of it.
    """

    where: str
    what: str
    said: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.said}"


def log_changes(logger: logging.Logger, before: Collection[Problem], now: Collection[Problem]) -> None:
    """Log each problem that a reading is the first to have, and each that it has no more."""
    for problem in now:
        if problem not in before:
            logger.warning("%s", problem)
    for problem in before:
        if problem not in now:
            logger.info("no more: %s", problem)
