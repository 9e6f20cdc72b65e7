"""Since when workloads wait for a reservation, and how often one did not help their tenant. No I/O.

The wait for the next reservation doubles with each one that came to nothing. It is the tenant's: else two of its pods,
or one that is made again and again, would have GPUs reserved in turns. ``features/reservations`` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from dradriver.api.claims.reservation_config_map import Since
from dradriver.queue.reservation_access import key_of
from dradriver.queue.reservation_rules import Reservation, Terms

LONG_S: Final = 60.0  # that a workload must be blocked for the next leader to be told
FORGIVEN_S: Final = 24 * 3600.0  # after which a tenant's last reservation that came to nothing counts no more


class ReservationWaits:
    """The waits of blocked workloads. An *account* is a tenant, or a namespace if there are no tenants."""

    def __init__(self) -> None:
        """Begin with none."""
        self._since: dict[str, Since] = {}
        self._failed: dict[str, Since] = {}  # by account

    def clear(self) -> None:
        """Forget since when workloads wait."""
        self._since.clear()

    def begin(self, who: str, now: float) -> None:
        """Note that a workload is blocked, unless it was before."""
        self._since.setdefault(who, Since(who, now))

    def keep(self, waits: Callable[[str], bool], now: float) -> None:
        """Forget the workloads that do not wait any more."""
        self._since = {who: _by(since, now) for who, since in self._since.items() if waits(who)}
        self._failed = {account: _by(failed, now) for account, failed in self._failed.items()}

    def fail(self, who: str, account: str, terms: Terms, now: float) -> None:
        """Note that a workload's reservation came to nothing: others have their turn."""
        if who in self._since:
            self._since[who] = Since(who, now, self._since[who].failed + 1)
        self._failed[account] = Since(account, now, self.failed(account, terms, now) + 1)

    def failed(self, account: str, terms: Terms, now: float) -> int:
        """Return how many reservations of an account came to nothing; each day takes one away."""
        known = self._failed.get(account)
        if known is None:
            return 0
        days = (now - known.at) // max(FORGIVEN_S, 2 * terms.bounded_wait_s)
        return max(known.failed - int(days), 0)

    def since(self, who: str, account: str) -> float:
        """Return since when a workload waits: it was blocked, and no reservation of its account came to nothing."""
        known = self._failed.get(account)
        return self._since[who].at if known is None else max(self._since[who].at, known.at)

    def had(self, who: str) -> int:
        """Return how many reservations of a workload's own came to nothing: others of its priority go first."""
        return self._since[who].failed

    def accounts(self) -> Iterable[Since]:
        """Return the accounts of which reservations came to nothing, and when the last one did."""
        return self._failed.values()

    def written(self, terms: Terms, now: float) -> tuple[Sequence[Since], Sequence[Since]]:
        """Return the workloads that wait, the longest first, and the accounts, the last first, for the API."""
        self._failed = {account: failed for account, failed in self._failed.items() if self.failed(account, terms, now)}
        blocked = [since for since in self._since.values() if since.at <= now - LONG_S or since.failed]
        return (
            sorted(blocked, key=lambda since: since.at),
            sorted(self._failed.values(), key=lambda since: since.at, reverse=True),
        )

    def restore(self, blocked: Iterable[Since], failed: Iterable[Since], account_of: Callable[[str], str]) -> None:
        """Take in what another leader wrote; ``account_of`` returns the account of a namespace."""
        self._since = {since.who: since for since in blocked}
        # A former release counted for each workload by itself.
        accounts = ((account_of(key_of(since.who)[0]), since) for since in self._since.values() if since.failed)
        self._failed |= {account: Since(account, since.at, since.failed) for account, since in accounts}
        self._failed |= {since.who: since for since in failed}


def _by(since: Since, now: float) -> Since:
    """Return it as of now at the latest: if the clock was set back, nobody waits until it is as late again."""
    return since if since.at <= now else msgspec.structs.replace(since, at=now)


def is_in_vain(held: Reservation, terms: Terms) -> bool:
    """Return whether a reservation that ended without a place has cost so much that it counts as come to nothing.

    Else a tenant could delete its pod just before, and make another.
    """
    return held.moved > 0 or held.idle_gpu_s > terms.short_s * len(held.gpus)
