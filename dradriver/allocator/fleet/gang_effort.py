"""How much work one look at a gang may cost. The searches of ``place_gang`` count it; callers share one for all tries.

Work is counted in evaluations of nodes, never in seconds: the same cluster and the same gang give the same answer on
every machine, however busy it is.
"""

from __future__ import annotations

from typing import Final

MOST_EVALUATIONS: Final = 20_000_000  # of numbers of nodes in arrays: 0.1 to 0.2 s
CALL: Final = 2_000  # evaluations that a call of numpy costs as much as
ROLE_CALLS: Final = 50  # calls of numpy to place one role in one part of the network


class Effort:
    """How many evaluations of nodes are left.

    Attributes:
        gave_up: Whether something was not looked at because of its cost.
    """

    def __init__(self, evaluations: int = MOST_EVALUATIONS) -> None:
        self._left = evaluations
        self._whole: Effort | None = None
        self.gave_up = False

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left: what still has to be done is done in one way only."""
        return self._left < 0

    def spend(self, evaluations: int) -> bool:
        """Return whether so much may be done."""
        self._left -= evaluations
        if self._whole is not None:
            self._whole.spend(evaluations)
        self.gave_up |= self._left < 0
        return not self.is_spent

    def part(self, parts: int) -> Effort:
        """Return an effort with one of so many equal parts of what is left; what it spends is spent here, too."""
        made = Effort(self._left // parts)
        made._whole = self
        return made

    def rest(self) -> Effort:
        """Return an effort of its own with what is left of this one: to find out why a search found nothing."""
        return Effort(self._left)
