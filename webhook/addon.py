"""Checks pods in clusters where another DRA driver allocates the GPUs: some requests are impossible there."""

from __future__ import annotations

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.pod.resolved import Resolved
from dradriver.topology.vendors import VENDORS


def check(resolved: Resolved, *, by_template: bool) -> list[str]:
    """Return warnings about a request in a cluster where another driver allocates the GPUs.

    If this driver allocates the GPUs itself, there are no warnings.

    Args:
        resolved: The pod's resolved request.
        by_template: Whether a claim template requests the pod's GPUs, and so determines their vendor.

    Raises:
        WordError: The pod requests a fraction of a GPU, another vendor's GPUs, or a placement that needs this driver's
            device attributes.
    """
    driver = current_ledger()  # the DRA driver that allocates GPUs in this cluster
    if driver is OURS:
        return []
    if not isinstance(resolved.request, Whole):  # a share or MIG slices
        raise WordError(
            f"In this cluster {driver.driver} allocates the GPUs, and it allocates whole GPUs only. For a fraction of "
            f"a GPU, write a ResourceClaimTemplate of that driver, and remove the {names.PREFIX} annotations."
        )
    vendor = resolved.request.vendor
    if vendor != driver.vendor and not by_template:
        resource = VENDORS[driver.vendor].resources[0]
        raise WordError(
            f"In this cluster {driver.driver} allocates the GPUs, and the pod requests GPUs of another vendor "
            f"({vendor}). Write the limit {resource}, or remove the {names.PREFIX} annotations."
        )
    # Both annotations leave the choice to the scheduler, by device attributes that only this driver publishes. They are
    # UNSET if the pod does not have them.
    for key, value in ((names.PLACEMENT, resolved.placement), (names.WHEN_FULL, resolved.when_full)):
        if isinstance(value, str):
            raise WordError(
                f"{key}: {value}: in this cluster {driver.driver} allocates the GPUs, and its devices lack the "
                f"attributes that kube-scheduler needs to choose. Remove the annotation."
            )
    # These settings are carried out by the node agent that prepares the GPUs. The others ask for nothing.
    if resolved.nccl in ("file", "env", "near-nics"):
        return [f"{names.NCCL} has no effect: {driver.driver} prepares the GPUs in this cluster."]
    return []
