"""What could not be read of a machine: a line in the log, and never the end of a reading."""

from __future__ import annotations

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
