"""Another driver's GPUs as if they were ours, where it hands out those of machines that our agents describe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dradriver.api import names, slices
from dradriver.api.ledger import Ledger
from dradriver.api.objects import Device, ResourceSlice
from dradriver.api.pins import Claim


def as_ours(
    ours: Sequence[ResourceSlice], theirs: Iterable[ResourceSlice], claims: Iterable[Claim], ledger: Ledger
) -> tuple[list[ResourceSlice], list[Claim]]:
    """Return slices and claims as this driver would have written them.

    Its names for GPUs are those of today: of a claim from before they shifted, nobody but the controller knows better.

    Args:
        ours: Our slices.
        theirs: The other driver's.
        claims: All claims.
        ledger: What tells the other driver's devices.
    """
    machines = {piece.spec.pool.name: piece for piece in ours if names.MACHINE in piece.metadata.annotations}
    own = {piece.spec.pool.name for piece in ours if piece.spec.devices}
    found = [piece for piece in theirs if piece.spec.pool.name in machines.keys() - own]
    if not found:
        return list(ours), list(claims)
    pools = {piece.spec.pool.name for piece in found}
    renamed = {
        (piece.spec.pool.name, device.name): _identity(device, ledger)
        for piece in found
        for device in piece.spec.devices
    }
    joined = [
        msgspec.structs.replace(
            piece,
            metadata=msgspec.structs.replace(
                piece.metadata, annotations=machines[piece.spec.pool.name].metadata.annotations
            ),
            spec=msgspec.structs.replace(
                piece.spec,
                driver=names.DRIVER,
                devices=[
                    msgspec.structs.replace(device, name=renamed[piece.spec.pool.name, device.name])
                    for device in piece.spec.devices
                ],
            ),
        )
        for piece in found
    ]
    kept = [piece for piece in ours if piece.spec.pool.name not in pools]
    return [*kept, *joined], [_renamed(claim, renamed, ledger) for claim in claims]


def _identity(device: Device, ledger: Ledger) -> str:
    """Return our name for a device: of a whole GPU its uuid; a part of one is known by its parent, not by its name."""
    uuid = device.attributes.get(ledger.uuid_attribute, {}).get("string")
    whole = device.attributes.get("type", {}).get("string") == "gpu"
    return slices.device_name(uuid) if whole and isinstance(uuid, str) else device.name


def _renamed(claim: Claim, renamed: dict[tuple[str, str], str], ledger: Ledger) -> Claim:
    allocation = claim.status.allocation
    if allocation is None or not any(result.driver == ledger.driver for result in allocation.devices.results):
        return claim
    results = [
        msgspec.structs.replace(
            result, driver=names.DRIVER, device=renamed.get((result.pool, result.device), result.device)
        )
        if result.driver == ledger.driver
        else result
        for result in allocation.devices.results
    ]
    devices = msgspec.structs.replace(allocation.devices, results=results)
    status = msgspec.structs.replace(claim.status, allocation=msgspec.structs.replace(allocation, devices=devices))
    return msgspec.structs.replace(claim, status=status)
