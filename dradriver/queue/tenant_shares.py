"""The share of each tenant: its decayed GPU time plus its present GPUs, divided by its weight. No I/O.

Used GPU time halves with each half-life, as in Slurm's fair share and Kueue's AdmissionFairSharing. In addition, the
GPUs that a tenant has now, allocated or in tentative placements, count as if it had already used them for some time.
Otherwise a tenant with little usage would get all free GPUs at once, before any of them counts as used. A tentative
placement that fails leaves no usage. ``Tenants`` calls this module.

A *tenant* is a group of namespaces in the policies file.
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
    """The usage of one tenant or namespace.

    Attributes:
        used: GPU-seconds until the time ``since``, decayed to this time.
        held: GPUs that are allocated to the tenant or namespace now.
        charged: ``held``, and the GPUs in its tentative placements.
    """

    __slots__ = ("charged", "held", "since", "used")

    def __init__(self, now: float) -> None:
        self.used = self.held = self.charged = 0.0
        self.since = now


def _itself(namespace: str) -> str:
    return namespace


class Shares:
    """GPU time by tenant.

    The cost of a change or a query does not depend on the number of tenants. GPU time is counted for each namespace,
    and for each tenant as the sum of its namespaces. These sums stay right, because all usage decays at the same rate.

    Attributes:
        half_life_s: After how many seconds usage counts half; see ``decay_by``.
        ahead_s: For how many seconds the current GPUs of a tenant count in advance.
        lowered: Event: the ``turn`` of this tenant may be less than before; None for all tenants.
    """

    def __init__(
        self, clock: Callable[[], float], *, half_life_s: float = HALF_LIFE_S, ahead_s: float = AHEAD_S
    ) -> None:
        """Make an object without usage, in which each namespace is a tenant of its own.

        ``clock`` returns seconds and never goes back. The other arguments are the attributes of the class.
        """
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
        """Assign all namespaces to tenants, together with the GPU time that they have used.

        Args:
            of: A function that returns the tenant of a namespace.
        """
        self._of = of
        self._tenants = {}
        for namespace in self._namespaces:
            account, whole = self._settled(self._namespaces, namespace), self._settled(self._tenants, of(namespace))
            whole.used += account.used
            whole.held += account.held
            whole.charged += account.charged
        self.lowered(None)

    def move(self, namespace: str, before: str) -> None:
        """Move a namespace, with its GPU time, from tenant ``before`` to its current tenant."""
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
        """Return the tenants that have GPUs, or have used GPU time."""
        return tuple(self._tenants)

    def used(self, tenant: str) -> float:
        """Return how much GPU time a tenant has used until now, in GPU-seconds, decayed."""
        account = self._tenants.get(tenant)
        return 0.0 if account is None else self._used(account, self._clock())

    def held(self, tenant: str) -> tuple[float, float]:
        """Return how many GPUs a tenant has: those allocated, and these plus its tentative placements."""
        account = self._tenants.get(tenant)
        return (0.0, 0.0) if account is None else (account.held, account.charged)

    def share(self, tenant: str, weight: float = 1.0) -> float:
        """Return a tenant's share: used and advance GPU-seconds, divided by its weight."""
        account = self._tenants.get(tenant)
        if account is None:
            return 0.0
        lost = math.expm1(
            (account.since - self._clock()) * self._rate
        )  # as in _used; asked of each tenant at each turn
        used = account.used + lost * (account.used - account.held / self._rate)
        return (used + account.charged * self.ahead_s) / weight

    def turn(self, tenant: str, weight: float = 1.0) -> float:
        """Return a tenant's share in a form that never falls as time passes.

        The share is scaled up by the decay of usage since a fixed moment. All shares decay at the same rate, so the
        order of tenants is the same as by ``share``.
        """
        halved = (self._clock() - self._epoch) * self._rate
        return self.share(tenant, weight) * math.exp(min(halved, _MOST_E))

    def holds(self, namespace: str, held: float, charged: float) -> None:
        """Add GPUs of a namespace to its tenant's share; negative numbers subtract them.

        Args:
            namespace: The namespace.
            held: GPUs that are allocated to it. A fraction of a GPU counts as that fraction.
            charged: ``held``, and the GPUs in its tentative placements.
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
        """Replace all counted GPU time and all present GPUs, for example when a new leader begins.

        Args:
            used: The GPU-seconds that each namespace has used.
            now: For each namespace, its allocated GPUs, and these plus the GPUs in tentative placements.
        """
        self._namespaces = {}
        for namespace in used.keys() | now.keys():
            account = self._settled(self._namespaces, namespace)
            account.used = used.get(namespace, 0.0)
            account.held, account.charged = now.get(namespace, (0.0, 0.0))
        self.regroup(self._of)

    def correct(self, now: Mapping[str, tuple[float, float]]) -> list[str]:
        """Correct the GPUs of each namespace. Return the namespaces whose recorded numbers were wrong.

        Args:
            now: For each namespace, its allocated GPUs, and these plus the GPUs in tentative placements.
        """
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
        """Return an account's usage at a time, GPU-seconds.

        This is the decayed earlier usage, and the usage since then, which decays, too. With g GPUs since s and
        half-life H, the latter is the integral of g * 2^-((now - x) / H) dx = g * H / ln 2 * (1 - 2^-((now - s) / H)).
        """
        lost = math.expm1((account.since - now) * self._rate)  # 2^-(...) - 1, exact for moments of a half-life of years
        return account.used + lost * (account.used - account.held / self._rate)

    def _tidy(self, accounts: dict[str, _Account], key: str) -> None:
        """Set an account's GPUs to 0 if they differ from 0 only by rounding errors.

        The account is removed if it also has less than 0.001 GPU-seconds.
        """
        account = accounts[key]
        if abs(account.charged) < 1e-9 and abs(account.held) < 1e-9:
            account.held = account.charged = 0.0
            if account.used < 1e-3:
                del accounts[key]
