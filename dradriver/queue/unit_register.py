"""The units that the controller looks after. The dispatcher fills it; the other parts of the loop read it."""

from __future__ import annotations

from dradriver.api.claims.pins import Key
from dradriver.queue.kueue_entries import Entries
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.units import Unit


class UnitRegister(dict[Key, Unit]):
    """Units by the key of their pod or gang.

    Attributes:
        newest: When the newest pod that was looked at was created; empty before the first.
    """

    def __init__(self, tenants: Tenants) -> None:
        """Make an empty register; ``tenants`` say what the priorities of a unit count."""
        super().__init__()
        self.newest = ""
        self._tenants, self._entries = tenants, Entries(tenants)

    def add(self, unit: Unit) -> None:
        """Look after a unit from now on, or after another state of it; call it while the unit is not in the queue."""
        self[unit.key] = unit
        unit.trust(self._tenants.highest(unit.key[0]))
        created = (member.pod.metadata.creation_timestamp or "" for member in unit.members)
        self.newest = max(self.newest, *created)

    def enter(self, unit: Unit) -> None:
        """Have a unit take its position in the queue that it has now; call it while the unit is not in the queue."""
        self._entries.look(unit, self.newest)

    def has(self, unit: Unit) -> bool:
        """Return whether this workload is in the register, and not another one of the same key."""
        return self.get(unit.key) is unit
