"""Quotas of a policies file's tenants, which bound what kube-scheduler places: no cap of the driver's does that."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.policies.model import Policies
from dradriver.view.terminal_text import plain

KIND: Final = "ResourceQuota"
DEVICES: Final = "{}.deviceclass.resource.k8s.io/devices"
NAME: Final = "gpu-topology-cap"
ANY: Final = "*"


class TenantQuotas(msgspec.Struct, frozen=True):
    """The quotas of one tenant.

    Attributes:
        tenant: The tenant.
        counts: What each of them counts.
        notes: What is not the same as its cap.
        quotas: The quotas to apply, one a namespace.
    """

    tenant: str
    counts: dict[str, str]
    notes: tuple[str, ...]
    quotas: tuple[dict[str, Any], ...]


def of_policies(policies: Policies) -> list[TenantQuotas]:
    """Return the quotas of all tenants of a policies file that have a cap which a quota can count."""
    found = []
    for name, tenant in sorted(policies.tenants.items()):
        if not tenant.cap or tenant.admission == "kueue":
            continue
        caps = {product: cap.gpus for cap in tenant.cap for product in cap.products or (ANY,)}
        made = of_tenant(name, tenant.namespaces, caps)
        if tenant.namespace_labels:
            note = "its namespaces by labels are not in the file: apply the quota to each of them, too"
            made = msgspec.structs.replace(made, notes=(*made.notes, note))
        found.append(made)
    return found


def of_tenant(tenant: str, namespaces: Collection[str], caps: Mapping[str, float]) -> TenantQuotas:
    """Return the quotas of a tenant: each of its namespaces gets the whole cap, for a quota is of one namespace.

    So none is tighter than the cap, which still bounds what the driver places of all of them together.

    Args:
        tenant: The tenant.
        namespaces: Its namespaces.
        caps: Most GPUs by product, a name or a glob; ``ANY`` for all products together.
    """
    notes = []
    counts: dict[str, str] = {}
    if (most := caps.get(ANY)) is not None:
        counts |= {DEVICES.format(each): str(math.floor(most)) for each in current_ledger().vendor_of}
        if most != math.floor(most):
            notes.append(f"a quota counts whole devices: {math.floor(most)} of {most:g} GPUs")
    products = sorted(product for product in caps if product != ANY)
    if products:
        notes.append(f"no quota counts one product's GPUs: what it may have of {', '.join(products)} is not bounded")
    if counts and current_ledger() is OURS:
        parts = " and ".join(DEVICES.format(each) for each in (names.SHARE_CLASS, names.MIG_CLASS))
        notes.append(f"shares and slices count one each, whatever their size, so they are not bounded: write {parts}")
    if counts and len(namespaces) > 1:
        notes.append(
            f"a quota is of one namespace: each of the {len(namespaces)} may have so many, of what only kube-scheduler "
            "places; of what the driver places the cap counts all of them together"
        )
    quotas = tuple(
        {
            "apiVersion": "v1",
            "kind": KIND,
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": {"hard": counts},
        }
        for namespace in sorted(namespaces)
        if counts
    )
    return TenantQuotas(tenant=plain(tenant), counts=counts, notes=tuple(map(plain, notes)), quotas=quotas)
