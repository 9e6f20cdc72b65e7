"""The tenant of each namespace by the policies file, with the tenant's weight, caps, partition and share.

``Queue``, ``Caps`` and the CLI ask it.

A *tenant* is a group of namespaces in the policies file. A tenant's *cap* is the largest number of GPUs that it may
have at a time. Its *partition* is the GPUs that it must use; its *share* is its used GPU time divided by its weight.
"""

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
    """The tenant of each namespace.

    The tenant of a namespace is, in this order:

    1. the tenant that names the namespace;
    2. the first tenant by name whose labels in the policies file the namespace has;
    3. a tenant that consists only of this namespace, with weight 1.

    Attributes:
        shares: The GPU time of namespaces and tenants.
        by_labels: Whether some tenant selects namespaces by labels.
        policies_known: Whether the policies are known. False if the policies file was invalid when the process started.
            Then no tenant is known.
    """

    def __init__(self, shares: Shares) -> None:
        """Create an object without tenants. ``follow`` adds the tenants of a policies file."""
        self.shares = shares
        self.by_labels = False
        self.policies_known = True
        self._tenants: Mapping[str, Tenant] = {}  # the tenants of the policies file, by name
        self._named: dict[str, str] = {}  # by namespace that the file names: its tenant
        self._labels: dict[str, Mapping[str, str]] = {}  # of each namespace
        self._labelled: dict[str, str] = {}  # tenants by namespace, of those that none names
        self._weights: dict[str, float] = {}  # by tenant: its weight

    def follow(self, policies: Policies) -> bool:
        """Apply the tenants of the current policies.

        Return whether the order of the queue or the caps may have changed.
        """
        queue = policies.queue
        if self.shares.ahead_s != queue.ahead_minutes * MINUTE_S:
            self.shares.ahead_s = queue.ahead_minutes * MINUTE_S
            self.shares.lowered(None)
        if self.shares.half_life_s != queue.half_life_hours * HOUR_S:
            self.shares.decay_by(queue.half_life_hours * HOUR_S)
        if policies.tenants == self._tenants and policies.known == self.policies_known:
            return False
        self._tenants, self.policies_known = policies.tenants, policies.known
        self._named = {space: name for name, tenant in policies.tenants.items() for space in tenant.namespaces}
        self.by_labels = any(tenant.namespace_labels for tenant in policies.tenants.values())
        self._labelled = {}
        for namespace, labels in self._labels.items():
            self._find(namespace, labels)
        self._weights = {name: tenant.weight for name, tenant in policies.tenants.items()}
        self.shares.regroup(self.of)
        return True

    def namespace_changed(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Update the labels of a namespace. Return whether the namespace's tenant may have changed.

        Args:
            namespace: The namespace.
            labels: Its labels; None if it was deleted.
        """
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
        """Return the tenants whose labels in the policies file match a namespace, sorted by name.

        The first of them gets the namespace. The result is empty if a tenant lists the namespace by name.
        """
        if not self.by_labels or namespace in self._named:
            return []
        return [
            name
            for name, tenant in self._tenants.items()
            if tenant.namespace_labels and tenant.namespace_labels.items() <= labels.items()
        ]

    def known(self, namespace: str) -> bool:
        """Return whether the tenant of a namespace is known.

        False while the policies are not known, and while the tenant depends on labels of the namespace that the
        controller has not read yet.
        """
        if not self.policies_known:
            return False
        return not self.by_labels or namespace in self._named or namespace in self._labels

    @property
    def named(self) -> Mapping[str, Tenant]:
        """Return the tenants of the policies file by name."""
        return self._tenants

    def of(self, namespace: str) -> str:
        """Return the tenant of a namespace.

        If the policies file has no tenant for it, this is ``namespace/NAME``. If the file has no tenants at all, it is
        one tenant for all namespaces.
        """
        if not self._tenants:
            return ALL
        return self._named.get(namespace) or self._labelled.get(namespace) or f"namespace/{namespace}"

    def namespaces(self, tenant: str) -> list[str]:
        """Return the known namespaces of a tenant of the policies file, sorted by name."""
        own = self._tenants[tenant].namespaces
        return sorted({*own, *(space for space, whose in self._labelled.items() if whose == tenant)})

    def partition_of(self, namespace: str) -> str:
        """Return the tenant whose partition limits a namespace's workloads; empty if none does.

        A tenant's partition is its own GPUs.
        """
        return self.partition(self.of(namespace))

    def partition(self, tenant: str) -> str:
        """Return the tenant's name if the policies limit the tenant to certain GPUs; else empty."""
        found = self._tenants.get(tenant)
        return tenant if found is not None and found.partition is not None else ""

    def kept_from_scheduler(self, namespace: str) -> str:
        """Return the tenant that forbids kube-scheduler to choose GPUs for pods of a namespace.

        Empty if kube-scheduler may choose them. A tenant with a partition can forbid this in the policies file. If the
        labels of the namespace are not read yet, kube-scheduler may not choose either. The result is then the tenant
        that ``of`` returns. While no policies are known, the result is empty: ``Caps`` then keeps all workloads
        waiting.
        """
        tenant = self.of(namespace)
        found = self._tenants.get(tenant)
        if found is None:
            return "" if self.known(namespace) else tenant
        return tenant if found.partition is not None and found.scheduler_placed == "refuse" else ""

    def by_kueue(self, tenant: str) -> bool:
        """Return whether Kueue decides the order and the quota of a tenant's workloads.

        If so, this driver does not.
        """
        found = self._tenants.get(tenant)
        return found is not None and found.admission == "kueue"

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight from the policies file; 1 without one.

        The weight is the part of GPU time that the tenant should get.
        """
        return self._weights.get(tenant, 1.0)

    def caps(self, tenant: str) -> Sequence[Cap]:
        """Return the caps on the number of GPUs that a tenant may have at a time.

        Empty without caps, or if Kueue decides.
        """
        found = self._tenants.get(tenant)
        return () if found is None or self.by_kueue(tenant) else found.cap

    def highest(self, namespace: str) -> int | None:
        """Return the highest priority that counts for workloads of a namespace; None for no limit.

        A pod with a higher priority is queued as if it had this priority.
        """
        found = self._tenants.get(self.of(namespace))
        return None if found is None else found.highest_priority

    def share(self, tenant: str) -> float:
        """Return a tenant's share: its GPU-seconds, used and in advance, divided by its weight.

        The queue serves the tenant with the smallest share first. The share is 0 for a tenant whose workloads Kueue
        admits, because Kueue has decided their order already. It is also 0 if the policies file has no tenants.
        """
        if tenant == ALL or self.by_kueue(tenant):
            return 0.0
        return self.shares.share(tenant, self._weights.get(tenant, 1.0))

    def turn(self, tenant: str) -> float:
        """Return a tenant's share as a number that never falls as time passes.

        So the order of tenants need not be computed again when time passes. See ``Shares.turn``.
        """
        if tenant == ALL or self.by_kueue(tenant):
            return 0.0
        return self.shares.turn(tenant, self._weights.get(tenant, 1.0))

    def relative(self, tenant: str) -> float:
        """Return a tenant's fraction of all GPU time, divided by its fraction of all weights.

        Above 1, the tenant has used more than its weight gives it. The result is 1 if no GPU time was used. Each
        tenant's present GPUs count as if already used for some time.
        """
        known = {tenant, *self.shares.tenants()}
        whole = math.fsum(map(self.shares.share, known))
        fair = self.weight(tenant) / math.fsum(map(self.weight, known))
        return self.shares.share(tenant) / whole / fair if whole else 1.0
