"""What a pod cannot have where another driver hands out the GPUs: what only the node agent could give it."""

from __future__ import annotations

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.pod.resolved import Resolved
from dradriver.topology.vendors import VENDORS


def check(found: Resolved, *, by_template: bool) -> list[str]:
    """Return warnings about what a pod asks for where another driver's devices are handed out.

    Args:
        found: What it asks for.
        by_template: Whether a claim's template says whose GPUs it has.

    Raises:
        WordError: It wants a part of another driver's GPU, or what only attributes of this driver's devices can say.
    """
    ledger = current_ledger()
    if ledger is OURS:
        return []
    if not isinstance(found.request, Whole):
        raise WordError(
            f"in this cluster {ledger.driver} hands out the GPUs, whole ones; for a part of one write a "
            f"ResourceClaimTemplate of that driver, without {names.PREFIX} annotations"
        )
    if (vendor := found.request.vendor) != ledger.vendor and not by_template:
        resource = VENDORS[ledger.vendor].resources[0]
        raise WordError(
            f"in this cluster {ledger.driver} hands out the GPUs that are chosen here, and the pod asks for those of "
            f"{vendor}; write a limit {resource}, or remove the {names.PREFIX} annotations"
        )
    for key, said in ((names.PLACEMENT, found.placement), (names.WHEN_FULL, found.when_full)):
        if isinstance(said, str):
            raise WordError(
                f"{key}: {said}: in this cluster {ledger.driver} hands out the GPUs, and its devices do not say what "
                f"the scheduler alone would have to know; remove the annotation"
            )
    if found.nccl in ("file", "env", "near-nics"):
        return [f"{names.NCCL}: {ledger.driver} prepares the GPUs in this cluster; NCCL is told nothing by this driver"]
    return []
