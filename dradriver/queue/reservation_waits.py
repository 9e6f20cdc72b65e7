"""How long workloads have waited for a reservation, and how many reservations failed for their tenant. No I/O.

``features/reservations`` calls it. The wait of a tenant's workloads for the next reservation doubles with each of its
reservations that failed. Otherwise two pods of a tenant, or a pod that is created again and again, would have GPUs
reserved all the time.

A *reservation* is GPUs that are kept for a workload that has waited too long. A workload is *blocked* if it found no
place.
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
    """How long blocked workloads have waited, and how many reservations of each account have failed.

    An *account* is a tenant, or a namespace if there are no tenants. A reservation has *failed* if it ended without a
    place for its workload and has cost much.
    """

    def __init__(self) -> None:
        """Make an empty record."""
        self._since: dict[str, Since] = {}
        self._failed: dict[str, Since] = {}  # by account

    def clear(self) -> None:
        """Forget all waiting workloads. Failed reservations of accounts stay recorded."""
        self._since.clear()

    def begin(self, who: str, now: float) -> None:
        """Record that the workload ``who`` is blocked from now on, unless it is recorded already."""
        self._since.setdefault(who, Since(who, now))

    def keep(self, waits: Callable[[str], bool], now: float) -> None:
        """Forget workloads that do not wait any more, and correct times in the future to ``now``.

        Args:
            waits: Returns whether the workload of this name still waits.
            now: Seconds since the epoch.
        """
        self._since = {who: _by(since, now) for who, since in self._since.items() if waits(who)}
        self._failed = {account: _by(failed, now) for account, failed in self._failed.items()}

    def fail(self, who: str, account: str, terms: Terms, now: float) -> None:
        """Record that the reservation of the workload ``who`` failed.

        The waits of the workload and of its account begin again. An account is a tenant, or a namespace without
        tenants.
        """
        if who in self._since:
            self._since[who] = Since(who, now, self._since[who].failed + 1)
        self._failed[account] = Since(account, now, self.failed(account, terms, now) + 1)

    def failed(self, account: str, terms: Terms, now: float) -> int:
        """Return how many failed reservations of an account still count.

        An account is a tenant, or a namespace without tenants. One failure less counts for each day since the last
        failure. If twice ``terms.bounded_wait_s`` is longer than a day, that time replaces the day.
        """
        known = self._failed.get(account)
        if known is None:
            return 0
        days = (now - known.at) // max(FORGIVEN_S, 2 * terms.bounded_wait_s)
        return max(known.failed - int(days), 0)

    def since(self, who: str, account: str) -> float:
        """Return when the wait of the workload ``who`` began.

        This is the later of two times: when the workload was blocked, and when the last reservation of its account (its
        tenant, or its namespace without tenants) failed.
        """
        known = self._failed.get(account)
        return self._since[who].at if known is None else max(self._since[who].at, known.at)

    def had(self, who: str) -> int:
        """Return how many reservations of the workload ``who`` have failed.

        Among workloads of one priority, those with fewer failures get a reservation first.
        """
        return self._since[who].failed

    def accounts(self) -> Iterable[Since]:
        """Return the accounts with failed reservations, and when the last one failed.

        An account is a tenant, or a namespace without tenants.
        """
        return self._failed.values()

    def written(self, terms: Terms, now: float) -> tuple[Sequence[Since], Sequence[Since]]:
        """Return the records to store in the API: waiting workloads, and accounts with failures.

        A workload is left out if it has been blocked for less than ``LONG_S`` seconds and no reservation of it has
        failed. An account is a tenant, or a namespace without tenants. The workloads that wait longest are first, and
        the accounts with the latest failures are first.
        """
        self._failed = {account: failed for account, failed in self._failed.items() if self.failed(account, terms, now)}
        blocked = [since for since in self._since.values() if since.at <= now - LONG_S or since.failed]
        return (
            sorted(blocked, key=lambda since: since.at),
            sorted(self._failed.values(), key=lambda since: since.at, reverse=True),
        )

    def restore(self, blocked: Iterable[Since], failed: Iterable[Since], account_of: Callable[[str], str]) -> None:
        """Replace the blocked workloads by those that another leader stored; add its failed reservations.

        ``account_of`` returns the account of a namespace: its tenant, or itself without tenants.
        """
        self._since = {since.who: since for since in blocked}
        # A former release counted for each workload by itself.
        accounts = ((account_of(key_of(since.who)[0]), since) for since in self._since.values() if since.failed)
        self._failed |= {account: Since(account, since.at, since.failed) for account, since in accounts}
        self._failed |= {since.who: since for since in failed}


def _by(since: Since, now: float) -> Since:
    """Return the record ``since``, with its time not later than ``now``.

    The clock may have been set back, and the wait must not become longer by that.
    """
    return since if since.at <= now else msgspec.structs.replace(since, at=now)


def is_in_vain(held: Reservation, terms: Terms) -> bool:
    """Return whether a reservation that ended without a place for its workload counts as failed.

    True if the reservation has moved, or if its GPUs were idle for more than ``terms.short_s`` each. This prevents a
    trick: a tenant could delete its pod just before the reservation fails, and create another pod.
    """
    return held.moved > 0 or held.idle_gpu_s > terms.short_s * len(held.gpus)
