"""Whose a namespace is, as the policies file says, and what each tenant has had for its weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from dradriver.api.policies.model import Policies, Tenant
from dradriver.queue.shares import Shares

ALL: Final = ""
"""Whose all namespaces are where the file names no tenants: nobody's share is compared with anybody's."""
HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0


class Tenants:
    """Tenants by namespace: those of the file; any other namespace is a tenant of its own, of weight 1.

    Attributes:
        shares: What namespaces have and had.
    """

    def __init__(self, shares: Shares) -> None:
        """Begin as without a file."""
        self.shares = shares
        self._tenants: Mapping[str, Tenant] = {}
        self._of: dict[str, str] = {}
        self._weights: dict[str, float] = {}

    def follow(self, policies: Policies) -> bool:
        """Take in the policies in force. Returns whether the order may be another one now."""
        queue = policies.queue
        self.shares.ahead_s = queue.ahead_minutes * MINUTE_S
        if self.shares.half_life_s != queue.half_life_hours * HOUR_S:
            self.shares.decay_by(queue.half_life_hours * HOUR_S)
        if policies.tenants == self._tenants:
            return False
        self._tenants = policies.tenants
        self._of = {space: name for name, tenant in policies.tenants.items() for space in tenant.namespaces}
        self._weights = {name: tenant.weight for name, tenant in policies.tenants.items()}
        self.shares.regroup(self.of)
        return True

    @property
    def named(self) -> Mapping[str, Tenant]:
        """The file's tenants."""
        return self._tenants

    def of(self, namespace: str) -> str:
        """Return whose a namespace is, by the tenant's name or, of one that no tenant has, by ``namespace/NAME``."""
        if not self._tenants:
            return ALL
        return self._of.get(namespace) or f"namespace/{namespace}"

    def partition_of(self, namespace: str) -> str:
        """Return the tenant whose partition binds the units of a namespace; empty for none."""
        name = self.of(namespace)
        found = self._tenants.get(name)
        return name if found is not None and found.partition is not None else ""

    def by_kueue(self, tenant: str) -> bool:
        """Return whether Kueue says who of a tenant is next and how much it may have: then nothing here does."""
        found = self._tenants.get(tenant)
        return found is not None and found.admission == "kueue"

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight."""
        return self._weights.get(tenant, 1.0)

    def highest(self, namespace: str) -> int | None:
        """Return the highest priority that counts in a namespace; None for any."""
        found = self._tenants.get(self._of.get(namespace, ""))
        return None if found is None else found.highest_priority

    def share(self, tenant: str) -> float:
        """Return what decides between tenants, GPU-seconds over weight: whoever has less is first.

        Nothing of those that Kueue admits: whom it has let in has had its turn there, in the order in which it let in.
        """
        return (
            0.0 if tenant == ALL or self.by_kueue(tenant) else self.shares.share(tenant, self._weights.get(tenant, 1.0))
        )

    def relative(self, tenant: str) -> float:
        """Return what a tenant has had beside what its weight says, among all who have had anything; 1 for just that.

        Its part of all that counts, which is usage before it is divided by weights, over its part of all weights.
        """
        known = {tenant, *self.shares.tenants()}
        whole = math.fsum(map(self.shares.share, known))
        fair = self.weight(tenant) / math.fsum(map(self.weight, known))
        return self.shares.share(tenant) / whole / fair if whole else 1.0
