"""The units that the controller looks after. The dispatcher fills it; the other parts of the loop read it."""

from __future__ import annotations

from dradriver.api.claims.pins import Key
from dradriver.queue.units import Unit


class UnitRegister(dict[Key, Unit]):
    """Units by the key of their pod or gang.

    Attributes:
        newest: When the newest pod that was looked at was created; empty before the first.
    """

    def __init__(self) -> None:
        """Make an empty register."""
        super().__init__()
        self.newest = ""

    def has(self, unit: Unit) -> bool:
        """Return whether this workload is in the register, and not another one of the same key."""
        return self.get(unit.key) is unit

    def note_created(self, *timestamps: str | None) -> None:
        """Take in when pods were created that are looked at now."""
        self.newest = max((self.newest, *(timestamp or "" for timestamp in timestamps)))
