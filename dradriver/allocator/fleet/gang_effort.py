"""The effort of one try to place a gang: how much work its searches may cost. The searches of ``place_gang`` count it.

Work is counted in evaluations of nodes, never in seconds: the same cluster and the same gang give the same answer on
every machine, however busy it is.
"""

from __future__ import annotations

from typing import Final

# Of numbers of nodes in arrays: 0.1 to 0.3 s of CPU time. Random gangs took 1 s for 130 to 390 million of them.
MOST_EVALUATIONS: Final = 40_000_000
CALL: Final = 2_000  # evaluations that a call of numpy costs as much as
ROLE_CALLS: Final = 70  # calls of numpy to place one role in one part of the network


class Effort:
    """How many evaluations of nodes are left.

    Attributes:
        gave_up: Whether something was not looked at because of its cost.
    """

    def __init__(self, evaluations: int = MOST_EVALUATIONS) -> None:
        self._left = self._most = evaluations
        self._whole: Effort | None = None
        self.gave_up = False

    @property
    def left(self) -> int:
        """Return how many evaluations the effort of a gang's search still allows; negative if more was spent."""
        return self._left if self._whole is None else min(self._left, self._whole.left)

    @property
    def spent(self) -> int:
        """Return how many evaluations the search of a gang has cost."""
        return self._most - self._left

    @property
    def is_spent(self) -> bool:
        """Return whether the effort of a gang's search is used up: the rest of the search takes one way only."""
        return self.left < 0

    def spend(self, evaluations: int) -> bool:
        """Count evaluations against the effort of a gang's search. Return whether the search may do so many."""
        self._left -= evaluations
        if self._whole is not None:
            self._whole.spend(evaluations)
        self.gave_up |= self.is_spent
        return not self.is_spent

    def fraction(self, parts: int) -> Effort:
        """Return one of so many equal fractions of the effort that is left. What it spends is spent here, too.

        ``gave_up`` of this effort does not change if the fraction gives up: what was not looked at for its cost may be
        looked at with what is left.
        """
        made = Effort(self.left // parts)
        made._whole = self
        return made

    def for_refusal(self) -> Effort:
        """Return an effort to find out later why a gang has no place: half as much as is left now.

        The refusal is made when it is read. Tries with fewer pods may have spent this effort by then, so what is
        returned is counted separately.
        """
        return Effort(self.left // 2)


def efforts(tries: int) -> list[Effort]:
    """Return the search effort of each of several tries to place a gang; the last try avoids no nodes.

    The last has as much as the only try of a gang would have, whatever the others spent: that it was tried before
    takes no place from a gang. The others share as much again, so a look costs at most twice what one try costs.
    """
    avoiding = Effort()
    return [*(avoiding.fraction(tries - 1) for _ in range(tries - 1)), Effort()]
