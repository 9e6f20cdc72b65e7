"""The share of each tenant: its GPU time, decayed, with what it has now, over its weight. No I/O.

Usage halves with each half-life, as in Slurm's fair share and Kueue's AdmissionFairSharing. What a tenant holds or was
promised counts in addition for some time ahead, as an entry penalty does: else whoever has had little would get all
that is free at once, before any of it has become usage. A promise that comes to nothing leaves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from dradriver.event import Event

HALF_LIFE_S: Final = 7 * 86_400.0
AHEAD_S: Final = 600.0
_MOST_E: Final = 600.0  # of an exponent: a double holds e to the power of 709
_WRONG: Final = 1e-3  # GPUs; what adding up fractions may lose is far less


class _Account:
    """One tenant's usage.

    Attributes:
        used: GPU-seconds, decayed until ``since``.
        held: GPUs that it has.
        charged: GPUs that it has or was promised.
    """

    __slots__ = ("charged", "held", "since", "used")

    def __init__(self, now: float) -> None:
        self.used = self.held = self.charged = 0.0
        self.since = now


def _itself(namespace: str) -> str:
    return namespace


class Shares:
    """Usage by tenant, to be compared at any time; a change or a question costs the same however many there are.

    It is counted by namespace, and also for each tenant, which is the sum over its namespaces: all decay alike.

    Attributes:
        half_life_s: After how long usage counts half; see ``decay_by``.
        ahead_s: For how long what a tenant has counts in advance.
        lowered: The ``turn`` of this tenant may be less than it was; None for all tenants.
    """

    def __init__(
        self, clock: Callable[[], float], *, half_life_s: float = HALF_LIFE_S, ahead_s: float = AHEAD_S
    ) -> None:
        """Begin with nothing used, each namespace a tenant; ``clock`` gives seconds and never goes back."""
        self._clock = clock
        self.half_life_s = half_life_s
        self._rate = math.log(2) / half_life_s
        self.ahead_s = ahead_s
        self.lowered: Event[[str | None]] = Event()
        self._epoch = clock()
        self._of: Callable[[str], str] = _itself  # function that returns the tenant of a namespace
        self._namespaces: dict[str, _Account] = {}  # usage by namespace
        self._tenants: dict[str, _Account] = {}  # usage by tenant

    def regroup(self, of: Callable[[str], str]) -> None:
        """Assign namespaces to these tenants, with the GPU time that they have had."""
        self._of = of
        self._tenants = {}
        for namespace in self._namespaces:
            account, whole = self._settled(self._namespaces, namespace), self._settled(self._tenants, of(namespace))
            whole.used += account.used
            whole.held += account.held
            whole.charged += account.charged
        self.lowered(None)

    def move(self, namespace: str, before: str) -> None:
        """Assign a namespace to another tenant, with the GPU time that it has had."""
        if namespace not in self._namespaces:
            return
        moved = self._settled(self._namespaces, namespace)
        for tenant, sign in ((before, -1.0), (self._of(namespace), 1.0)):
            account = self._settled(self._tenants, tenant)
            account.used += sign * moved.used
            account.held += sign * moved.held
            account.charged += sign * moved.charged
            self._tidy(self._tenants, tenant)
            self.lowered(tenant)

    def tenants(self) -> tuple[str, ...]:
        """Return the tenants that have, or had, GPU time."""
        return tuple(self._tenants)

    def used(self, tenant: str) -> float:
        """Return a tenant's GPU time until now, GPU-seconds, decayed."""
        account = self._tenants.get(tenant)
        return 0.0 if account is None else self._used(account, self._clock())

    def held(self, tenant: str) -> tuple[float, float]:
        """Return how many GPUs a tenant is given, and how many it is given or promised."""
        account = self._tenants.get(tenant)
        return (0.0, 0.0) if account is None else (account.held, account.charged)

    def share(self, tenant: str, weight: float = 1.0) -> float:
        """Return a tenant's share: GPU time and what counts in advance, GPU-seconds over weight."""
        account = self._tenants.get(tenant)
        if account is None:
            return 0.0
        lost = math.expm1(
            (account.since - self._clock()) * self._rate
        )  # as in _used; asked of each tenant at each turn
        used = account.used + lost * (account.used - account.held / self._rate)
        return (used + account.charged * self.ahead_s) / weight

    def turn(self, tenant: str, weight: float = 1.0) -> float:
        """Return a tenant's share as at one moment: it never falls by itself while time goes by.

        All shares decay alike, so tenants compare as by ``share``.
        """
        halved = (self._clock() - self._epoch) * self._rate
        return self.share(tenant, weight) * math.exp(min(halved, _MOST_E))

    def holds(self, namespace: str, held: float, charged: float) -> None:
        """Count so many more GPUs of a namespace for its tenant's share; fewer, if negative.

        Args:
            namespace: Whose they are.
            held: GPUs, parts as fractions, that it is given.
            charged: GPUs that it is given or promised.
        """
        for accounts, key in ((self._namespaces, namespace), (self._tenants, self._of(namespace))):
            account = self._settled(accounts, key)
            account.held += held
            account.charged += charged
            self._tidy(accounts, key)
        if (self._clock() - self._epoch) * self._rate > _MOST_E / 2:
            self._epoch = self._clock()
            self.lowered(None)
        elif held < 0 or charged < 0 or self._of(namespace) not in self._tenants:
            self.lowered(self._of(namespace))

    def restart(self, used: Mapping[str, float], now: Mapping[str, tuple[float, float]]) -> None:
        """Count shares again from what namespaces used until now, and from what they have."""
        self._namespaces = {}
        for namespace in used.keys() | now.keys():
            account = self._settled(self._namespaces, namespace)
            account.used = used.get(namespace, 0.0)
            account.held, account.charged = now.get(namespace, (0.0, 0.0))
        self.regroup(self._of)

    def correct(self, now: Mapping[str, tuple[float, float]]) -> list[str]:
        """Correct the GPUs of namespaces in shares by their claims. Returns those that were wrong."""
        wrong = []
        for namespace in self._namespaces.keys() | now.keys():
            account, (held, charged) = self._namespaces.get(namespace), now.get(namespace, (0.0, 0.0))
            has = (0.0, 0.0) if account is None else (account.held, account.charged)
            if max(abs(has[0] - held), abs(has[1] - charged)) > _WRONG:
                wrong.append(namespace)
                self.holds(namespace, held - has[0], charged - has[1])
        return sorted(wrong)

    def decay_by(self, half_life_s: float) -> None:
        """Set the half-life of GPU time in shares."""
        for accounts in (self._namespaces, self._tenants):
            for key in accounts:
                self._settled(accounts, key)
        self.half_life_s = half_life_s
        self._rate = math.log(2) / half_life_s
        self._epoch = self._clock()
        self.lowered(None)

    def _settled(self, accounts: dict[str, _Account], key: str) -> _Account:
        now = self._clock()
        account = accounts.get(key)
        if account is None:
            account = accounts[key] = _Account(now)
        account.used, account.since = self._used(account, now), now
        return account

    def _used(self, account: _Account, now: float) -> float:
        """Return usage at a time: what was used before decays, and so does what is used meanwhile, from then on.

        With rate g since s: integral of g * 2^-((now - x) / H) dx = g * H / ln 2 * (1 - 2^-((now - s) / H)).
        """
        lost = math.expm1((account.since - now) * self._rate)  # 2^-(...) - 1, exact for moments of a half-life of years
        return account.used + lost * (account.used - account.held / self._rate)

    def _tidy(self, accounts: dict[str, _Account], key: str) -> None:
        """Keep no rounding errors, and nobody who has nothing and had nothing worth a second."""
        account = accounts[key]
        if abs(account.charged) < 1e-9 and abs(account.held) < 1e-9:
            account.held = account.charged = 0.0
            if account.used < 1e-3:
                del accounts[key]
