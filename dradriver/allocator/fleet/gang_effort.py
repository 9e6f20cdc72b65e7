"""The effort of one try to place a gang: a limit on the work of its searches. The searches of ``place_gang`` use it.

Work is counted in evaluations of nodes, never in seconds. So the same cluster and the same gang give the same answer on
every machine, even on a busy one.

When no evaluations are left, a search is *greedy*: at each network level it tries only the domain with the most free
GPUs.
"""

from __future__ import annotations

from typing import Final

# Of numbers of nodes in arrays: 0.1 to 0.3 s of CPU time. Random gangs took 1 s for 130 to 390 million of them.
MOST_EVALUATIONS: Final = 40_000_000
CALL: Final = 2_000  # evaluations that a call of numpy costs as much as
ROLE_CALLS: Final = 70  # calls of numpy to place one role in one part of the network


class Effort:
    """How much work the searches for a gang's places may still do.

    Work is counted in evaluations of single nodes.

    Attributes:
        gave_up: Whether a search has skipped a possibility because it would have cost too much.
    """

    def __init__(self, evaluations: int = MOST_EVALUATIONS) -> None:
        self._left = self._most = evaluations
        self._whole: Effort | None = None
        self.gave_up = False

    @property
    def left(self) -> int:
        """Return how many evaluations of nodes the searches for a gang may still spend.

        The number is negative if they spent too many.
        """
        return self._left if self._whole is None else min(self._left, self._whole.left)

    @property
    def spent(self) -> int:
        """Return how many evaluations of nodes the searches for a gang have spent so far."""
        return self._most - self._left

    @property
    def is_spent(self) -> bool:
        """Return whether no evaluations of nodes are left. The search then becomes greedy."""
        return self.left < 0

    def spend(self, evaluations: int) -> bool:
        """Count evaluations of nodes as spent; return whether some are left.

        The search may continue if some are left.
        """
        self._left -= evaluations
        if self._whole is not None:
            self._whole.spend(evaluations)
        self.gave_up |= self.is_spent
        return not self.is_spent

    def fraction(self, parts: int) -> Effort:
        """Return a new effort with the remaining evaluations divided by ``parts``.

        Evaluations that the new effort spends are subtracted from this effort, too. If the new effort gives up, this
        effort's ``gave_up`` does not change: the evaluations that remain here can still be used to try the skipped
        possibilities.
        """
        made = Effort(self.left // parts)
        made._whole = self
        return made

    def for_refusal(self) -> Effort:
        """Return a separate effort, half of what is left, to search for a refusal's reason.

        The search starts only when the refusal's message is read. Before that, the caller can spend the present effort
        on tries with fewer pods. So evaluations that one of the two efforts spends are not subtracted from the other.
        """
        return Effort(self.left // 2)


def efforts(tries: int) -> list[Effort]:
    """Return one limit on the work (effort) for each try to place a gang.

    All tries but the last avoid some nodes. The last try has the full effort of a single try, so the earlier tries
    cannot cost the gang its place. The earlier tries share another full effort. So all tries together cost at most
    twice as much as a single one.
    """
    avoiding = Effort()
    return [*(avoiding.fraction(tries - 1) for _ in range(tries - 1)), Effort()]
