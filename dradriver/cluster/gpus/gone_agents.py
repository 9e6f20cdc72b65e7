"""Nodes whose agent is gone: claims use GPUs there, but the node publishes no ResourceSlice of this driver.

The kubelet deletes a driver's ResourceSlices 30 seconds after its plugin stopped (pkg/kubelet/cm/dra/plugin). The
node's pods still run on its GPUs, and only their claims show this. The controller's metrics, ``gputopo`` and its page
all read the list here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import LEDGERS, OURS, bound, current_ledger
from dradriver.api.claims.pins import Claim, Device
from dradriver.cluster.records.records import ClaimRecord, claim_record


def held(claim: ClaimRecord) -> tuple[Device, ...]:
    """Return a claim's allocated devices for which this driver's node agents are responsible.

    If this driver allocates devices, these are all devices of the claim. If another driver allocates them, only devices
    that our controller chose count: that driver may serve nodes that never had our agent. Empty for a claim without an
    allocation.
    """
    if not claim.devices:
        return ()
    if current_ledger() is OURS:
        return tuple(claim.devices)
    return tuple(device for device in claim.devices if claim.pin is not None and claim.pin.choice.node == device[0])


def held_by_any(claim: Claim, has_slices: Callable[[str], bool]) -> Iterator[Device]:
    """Yield a claim's devices on nodes whose agent is gone, whichever driver allocated the devices.

    ``has_slices`` returns whether a node has any ResourceSlice of this driver.
    """
    if claim.status.allocation is None:
        return
    drivers = {
        result.driver
        for result in claim.status.allocation.devices.results
        if not names.is_seat(result.driver, result.pool) and not has_slices(result.pool)
    }
    for driver in sorted(drivers & LEDGERS.keys()):
        with bound(LEDGERS[driver]):
            yield from (device for device in held(claim_record(claim)) if not has_slices(device[0]))


def gone(
    devices: Iterable[Device], *, has_slices: Callable[[str], bool], is_node: Callable[[str], bool]
) -> dict[str, frozenset[str]]:
    """Return the nodes whose agent is gone, each with the names of the devices that claims use there.

    Args:
        devices: The devices of claims, as ``held`` and ``held_by_any`` return them.
        has_slices: Returns whether a node has any ResourceSlice of this driver, complete or not.
        is_node: Returns whether the cluster has a node of this name. A node that was removed is not reported.
    """
    found: dict[str, set[str]] = {}
    for node, device in devices:
        if not has_slices(node) and is_node(node):
            found.setdefault(node, set()).add(device)
    return {node: frozenset(found[node]) for node in sorted(found)}
