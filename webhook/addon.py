"""Checks pods in clusters where another driver allocates the GPUs: some requests need this driver's node agent."""

from __future__ import annotations

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.pod.resolved import Resolved
from dradriver.topology.vendors import VENDORS


def check(resolved: Resolved, *, by_template: bool) -> list[str]:
    """Return warnings about a request if another driver allocates the GPUs.

    This driver is then an add-on. If it allocates the GPUs itself, there are no warnings.

    Args:
        resolved: The pod's resolved request.
        by_template: Whether a claim template has the GPU vendor.

    Raises:
        WordError: The pod asks for a part of a GPU, for another vendor's GPUs, or for a placement that needs this
            driver's device attributes.
    """
    driver = current_ledger()  # the DRA driver that allocates GPUs in this cluster
    if driver is OURS:
        return []
    if not isinstance(resolved.request, Whole):  # a share or MIG slices
        raise WordError(
            f"in this cluster {driver.driver} hands out the GPUs, whole ones; for a part of one write a "
            f"ResourceClaimTemplate of that driver, without {names.PREFIX} annotations"
        )
    vendor = resolved.request.vendor
    if vendor != driver.vendor and not by_template:
        resource = VENDORS[driver.vendor].resources[0]
        raise WordError(
            f"in this cluster {driver.driver} hands out the GPUs that are chosen here, and the pod asks for those of "
            f"{vendor}; write a limit {resource}, or remove the {names.PREFIX} annotations"
        )
    # Both annotations leave the choice to the scheduler, by device attributes that only this driver publishes. They are
    # UNSET if the pod does not have them.
    for key, value in ((names.PLACEMENT, resolved.placement), (names.WHEN_FULL, resolved.when_full)):
        if isinstance(value, str):
            raise WordError(
                f"{key}: {value}: in this cluster {driver.driver} hands out the GPUs, and its devices do not say what "
                f"the scheduler alone would have to know; remove the annotation"
            )
    # These settings are carried out by the node agent that prepares the GPUs. The others ask for nothing.
    if resolved.nccl in ("file", "env", "near-nics"):
        return [f"{names.NCCL}: {driver.driver} prepares the GPUs in this cluster; NCCL is told nothing by this driver"]
    return []
