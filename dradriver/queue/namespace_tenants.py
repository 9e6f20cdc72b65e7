"""The tenant of each namespace by the policies file, with the tenant's weight, caps, partition and share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.api.claims.usage_config_maps import HOUR_S
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Cap, Tenant
from dradriver.queue.tenant_shares import Shares

ALL: Final = ""
"""Whose all namespaces are where the file names no tenants: nobody's share is compared with anybody's."""
MINUTE_S: Final = 60.0


class Tenants:
    """Tenants by namespace: those of the file; any other namespace is a tenant of its own, of weight 1.

    A namespace that a tenant names is that one's; of tenants whose labels it has, it is the first's in the file.

    Attributes:
        shares: What namespaces have and had.
        by_labels: Whether some tenant has namespaces by their labels.
    """

    def __init__(self, shares: Shares) -> None:
        """Begin as without a file."""
        self.shares = shares
        self.by_labels = False
        self._tenants: Mapping[str, Tenant] = {}  # the tenants of the policies file, by name
        self._named: dict[str, str] = {}  # by namespace that the file names: its tenant
        self._labels: dict[str, Mapping[str, str]] = {}  # of each namespace
        self._labelled: dict[str, str] = {}  # tenants by namespace, of those that none names
        self._weights: dict[str, float] = {}  # by tenant: its weight

    def follow(self, policies: Policies) -> bool:
        """Apply the tenants of the policies in force. Returns whether the order or the caps may differ now."""
        queue = policies.queue
        if self.shares.ahead_s != queue.ahead_minutes * MINUTE_S:
            self.shares.ahead_s = queue.ahead_minutes * MINUTE_S
            self.shares.lowered(None)
        if self.shares.half_life_s != queue.half_life_hours * HOUR_S:
            self.shares.decay_by(queue.half_life_hours * HOUR_S)
        if policies.tenants == self._tenants:
            return False
        self._tenants = policies.tenants
        self._named = {space: name for name, tenant in policies.tenants.items() for space in tenant.namespaces}
        self.by_labels = any(tenant.namespace_labels for tenant in policies.tenants.values())
        self._labelled = {}
        for namespace, labels in self._labels.items():
            self._find(namespace, labels)
        self._weights = {name: tenant.weight for name, tenant in policies.tenants.items()}
        self.shares.regroup(self.of)
        return True

    def namespace_changed(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Update a namespace's labels, None if it is gone. Returns whether it may be another tenant's now."""
        before, known = self.of(namespace), self.known(namespace)
        if labels is None:
            self._labels.pop(namespace, None)
        else:
            self._labels[namespace] = labels
        self._labelled.pop(namespace, None)
        self._find(namespace, labels or {})
        if self.of(namespace) != before:
            self.shares.move(namespace, before)
            return True
        return self.known(namespace) != known

    def _find(self, namespace: str, labels: Mapping[str, str]) -> None:
        if found := self.claiming(namespace, labels):
            self._labelled[namespace] = found[0]

    def claiming(self, namespace: str, labels: Mapping[str, str]) -> list[str]:
        """Return the tenants whose label selectors match a namespace, in the file's order."""
        if not self.by_labels or namespace in self._named:
            return []
        return [
            name
            for name, tenant in self._tenants.items()
            if tenant.namespace_labels and tenant.namespace_labels.items() <= labels.items()
        ]

    def known(self, namespace: str) -> bool:
        """Return whether the tenant of a namespace is known: its labels may decide, and may be unread."""
        return not self.by_labels or namespace in self._named or namespace in self._labels

    @property
    def named(self) -> Mapping[str, Tenant]:
        """Return the tenants of the policies file, to which namespaces belong."""
        return self._tenants

    def of(self, namespace: str) -> str:
        """Return the tenant of a namespace; of one without a tenant ``namespace/NAME``."""
        if not self._tenants:
            return ALL
        return self._named.get(namespace) or self._labelled.get(namespace) or f"namespace/{namespace}"

    def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of one of the file's tenants, as far as they are known, by name."""
        own = self._tenants[tenant].namespaces
        return sorted({*own, *(space for space, whose in self._labelled.items() if whose == tenant)})

    def partition_of(self, namespace: str) -> str:
        """Return the tenant whose partition binds the workloads of a namespace; empty for none."""
        return self.partition(self.of(namespace))

    def partition(self, tenant: str) -> str:
        """Return whose partition binds a tenant: its own, by its name, or none."""
        found = self._tenants.get(tenant)
        return tenant if found is not None and found.partition is not None else ""

    def kept_from_scheduler(self, namespace: str) -> str:
        """Return whose partition keeps kube-scheduler from placing pods of a namespace by itself; empty for none.

        As long as the tenant of a namespace is not known, the namespace is one of its own and keeps the scheduler, too.
        """
        tenant = self.of(namespace)
        found = self._tenants.get(tenant)
        if found is None:
            return "" if self.known(namespace) else tenant
        return tenant if found.partition is not None and found.scheduler_placed == "refuse" else ""

    def by_kueue(self, tenant: str) -> bool:
        """Return whether Kueue decides a tenant's order and amounts: then nothing here does."""
        found = self._tenants.get(tenant)
        return found is not None and found.admission == "kueue"

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight."""
        return self._weights.get(tenant, 1.0)

    def caps(self, tenant: str) -> Sequence[Cap]:
        """Return what bounds how many GPUs a tenant may have at a time; none for nothing, and where Kueue says it."""
        found = self._tenants.get(tenant)
        return () if found is None or self.by_kueue(tenant) else found.cap

    def highest(self, namespace: str) -> int | None:
        """Return the highest priority that counts in a namespace of a tenant; None for any."""
        found = self._tenants.get(self.of(namespace))
        return None if found is None else found.highest_priority

    def share(self, tenant: str) -> float:
        """Return a tenant's share, GPU-seconds over weight: the tenant with the least is first.

        Nothing of those that Kueue admits: whom it has let in has had its turn there, in the order in which it let in.
        """
        if tenant == ALL or self.by_kueue(tenant):
            return 0.0
        return self.shares.share(tenant, self._weights.get(tenant, 1.0))

    def turn(self, tenant: str) -> float:
        """Return a tenant's share as a number that never falls by itself; see ``Shares.turn``."""
        if tenant == ALL or self.by_kueue(tenant):
            return 0.0
        return self.shares.turn(tenant, self._weights.get(tenant, 1.0))

    def relative(self, tenant: str) -> float:
        """Return a tenant's GPU time against its weight among all tenants; 1 for just that.

        Its part of all that counts, which is usage before it is divided by weights, over its part of all weights.
        """
        known = {tenant, *self.shares.tenants()}
        whole = math.fsum(map(self.shares.share, known))
        fair = self.weight(tenant) / math.fsum(map(self.weight, known))
        return self.shares.share(tenant) / whole / fair if whole else 1.0
