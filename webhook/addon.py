"""Checks pods in clusters where another driver allocates the GPUs: some requests need this driver's node agent."""

from __future__ import annotations

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.pod.resolved import Resolved
from dradriver.topology.vendors import VENDORS


def check(found: Resolved, *, by_template: bool) -> list[str]:
    """Return warnings about a pod's request if this driver is an add-on and another allocates the GPUs; else none.

    Args:
        found: The pod's resolved request.
        by_template: Whether a claim template has the GPU vendor.

    Raises:
        WordError: The pod asks for a part of a GPU, for another vendor's GPUs, or for a placement that needs this
            driver's device attributes.
    """
    ledger = current_ledger()
    if ledger is OURS:
        return []
    if not isinstance(found.request, Whole):
        raise WordError(
            f"in this cluster {ledger.driver} hands out the GPUs, whole ones; for a part of one write a "
            f"ResourceClaimTemplate of that driver, without {names.PREFIX} annotations"
        )
    vendor = found.request.vendor
    if vendor != ledger.vendor and not by_template:
        resource = VENDORS[ledger.vendor].resources[0]
        raise WordError(
            f"in this cluster {ledger.driver} hands out the GPUs that are chosen here, and the pod asks for those of "
            f"{vendor}; write a limit {resource}, or remove the {names.PREFIX} annotations"
        )
    # Both have the scheduler choose the GPUs, by device attributes that only this driver publishes.
    for key, value in ((names.PLACEMENT, found.placement), (names.WHEN_FULL, found.when_full)):
        if isinstance(value, str):
            raise WordError(
                f"{key}: {value}: in this cluster {ledger.driver} hands out the GPUs, and its devices do not say what "
                f"the scheduler alone would have to know; remove the annotation"
            )
    if found.nccl in ("file", "env", "near-nics"):
        return [f"{names.NCCL}: {ledger.driver} prepares the GPUs in this cluster; NCCL is told nothing by this driver"]
    return []
