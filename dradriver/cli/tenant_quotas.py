"""Quotas made from the caps of a policies file's tenants, for ``gputopo quota``.

These quotas also limit pods that kube-scheduler places alone. The driver's own caps do not limit such pods.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.policies.policy_sections import Policies
from dradriver.counted import counted
from dradriver.view.terminal_text import plain

KIND: Final = "ResourceQuota"
DEVICES: Final = "{}.deviceclass.resource.k8s.io/devices"
NAME: Final = "gpu-topology-cap"
ANY: Final = "*"


class TenantQuotas(msgspec.Struct, frozen=True):
    """The quotas of one tenant.

    Attributes:
        tenant: The tenant.
        counts: The resource names that each quota limits, such as devices of a DeviceClass, with their limits.
        notes: Differences between the quotas and the tenant's cap.
        quotas: The quotas to apply, one for each namespace.
    """

    tenant: str
    counts: dict[str, str]
    notes: tuple[str, ...]
    quotas: tuple[dict[str, Any], ...]


def of_policies(policies: Policies) -> list[TenantQuotas]:
    """Return the quotas of the tenants in a policies file that have a cap and are not admitted by Kueue."""
    quotas = []
    for name, tenant in sorted(policies.tenants.items()):
        if not tenant.cap or tenant.admission == "kueue":
            continue
        caps = {product: cap.gpus for cap in tenant.cap for product in cap.products or (ANY,)}
        tenant_quotas = of_tenant(name, tenant.namespaces, caps)
        if tenant.namespace_labels:
            note = "its namespaces by labels are not in the file: apply the quota to each of them, too"
            tenant_quotas = msgspec.structs.replace(tenant_quotas, notes=(*tenant_quotas.notes, note))
        quotas.append(tenant_quotas)
    return quotas


def of_tenant(tenant: str, namespaces: Collection[str], caps: Mapping[str, float]) -> TenantQuotas:
    """Return the quotas of a tenant, one for each of its namespaces.

    A quota bounds one namespace, so each namespace gets the whole cap. The driver's own cap still bounds what it
    places in all namespaces together.

    Args:
        tenant: The tenant.
        namespaces: Its namespaces.
        caps: Most GPUs by product, a name or a glob; ``ANY`` for all products together.
    """
    notes = []
    counts: dict[str, str] = {}
    # A line for each DeviceClass of whole GPUs (``<class>.deviceclass.resource.k8s.io/devices``). Only the cap for all
    # products can be expressed so.
    max_gpus = caps.get(ANY)
    if max_gpus is not None:
        whole_gpus = math.floor(max_gpus)
        device_classes = current_ledger().vendor_of.keys()  # of the driver that allocates the GPUs
        counts |= {DEVICES.format(device_class): str(whole_gpus) for device_class in device_classes}
        if max_gpus != whole_gpus:
            notes.append(f"a quota counts whole devices: {whole_gpus} of {counted(max_gpus, 'GPU')}")
    products = sorted(product for product in caps if product != ANY)
    if products:
        notes.append(f"no quota counts one product's GPUs: what it may have of {', '.join(products)} is not bounded")
    # Only this driver has shares and slices. If another driver allocates the GPUs, there are none to count.
    if counts and current_ledger() is OURS:
        fractions = " and ".join(DEVICES.format(device_class) for device_class in (names.SHARE_CLASS, names.MIG_CLASS))
        notes.append(
            f"shares and slices count one each, whatever their size, so they are not bounded: write {fractions}"
        )
    if counts and len(namespaces) > 1:
        notes.append(
            f"a quota limits one namespace, so each of the {len(namespaces)} namespaces may have this many GPUs. "
            "For pods that the driver places, the cap limits all of them together"
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
