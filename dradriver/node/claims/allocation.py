"""From an allocated claim to what will be prepared: a pure function."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from dradriver.api import config, names, slices
from dradriver.api.config import ClaimConfig
from dradriver.api.objects import AllocationResult, DeviceConfig, ResourceClaim
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.discovery import toolkit
from dradriver.node.errors import ClaimError, DeviceMissingError
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

# Else NVIDIA's container runtime, where it is the default one, adds every GPU of the machine.
_HIDE: Final = ("NVIDIA_VISIBLE_DEVICES", "void")
_ORDER: Final = "CUDA_DEVICE_ORDER"
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def plan(claim: ResourceClaim, machine: Machine, *, node: str, host_path: str | None = None) -> PreparedClaim:
    """Return what preparing the claim on this machine means: its devices in the allocation's order, its variables.

    Only this driver's results count; a claim without any gives a plan without devices.

    Args:
        claim: The claim as the API server has it.
        machine: The machine as it is now.
        node: The node's name, which is also its pool's.
        host_path: What stands behind every device node; None where NVIDIA's own CDI specification brings the nodes.

    Raises:
        ClaimError: The claim is not allocated, or to another node's device.
        WordError: The claim's configuration is refused.
        DeviceMissingError: A device is not on the machine now.
    """
    if claim.status.allocation is None:
        raise ClaimError("the claim is not allocated")
    gpus = {slices.device_name(gpu.uuid): gpu for gpu in machine.gpus if gpu.mig is None}
    devices: list[PreparedDevice] = []
    by_request: dict[str, list[Gpu]] = {}
    configs: dict[str, ClaimConfig | None] = {}
    for result in claim.results:
        if result.pool != node:
            raise ClaimError(f"device {result.device} is in pool {result.pool}, not on this node, {node}")
        gpu = gpus.get(result.device)
        if gpu is None:
            raise DeviceMissingError(f"GPU {result.device} is not on node {node} now")
        request = result.request.split("/", 1)[0]
        devices.append(
            PreparedDevice(
                request=request,
                pool=result.pool,
                device=result.device,
                uuid=gpu.uuid,
                path=f"/dev/nvidia{gpu.minor}",
                host_path=host_path or "",
                cdi=() if host_path else (toolkit.cdi_id(gpu.uuid),),
                share_id=result.share_id,
                admin=bool(result.admin_access),
            )
        )
        by_request.setdefault(request, []).append(gpu)
        configs.setdefault(request, _config_for(result, claim.status.allocation.devices.config))
    return PreparedClaim(
        uid=claim.metadata.uid,
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        devices=tuple(devices),
        env={request: _env(request, on, configs[request]) for request, on in by_request.items()},
    )


def _config_for(result: AllocationResult, configs: Sequence[DeviceConfig]) -> ClaimConfig | None:
    """Return the configuration of a result's request; a claim's own wins over its class's, a later over an earlier."""
    asked = {result.request, result.request.split("/", 1)[0]}
    found = [
        (entry.source == "FromClaim", number, entry.opaque.parameters)
        for number, entry in enumerate(configs)
        if entry.opaque is not None
        and entry.opaque.driver == names.DRIVER
        and (not entry.requests or asked & set(entry.requests))
    ]
    return config.read(max(found, key=lambda entry: entry[:2])[2]) if found else None


def _env(request: str, gpus: Sequence[Gpu], found: ClaimConfig | None) -> tuple[str, ...]:
    kept = set(found.keep_env) if found is not None else set()
    env = {} if _HIDE[0] in kept else {_HIDE[0]: _HIDE[1]}
    order = found.order.get(request) if found is not None else None
    if order and not kept & {_ORDER, _VISIBLE}:
        env |= _rank_order(order, gpus)
    return tuple(f"{key}={value}" for key, value in env.items())


def _rank_order(order: Sequence[str], gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the variables that make CUDA number the GPUs in this order; none where PCI order already is this order.

    They count the container's own GPUs: uuids would crash programs that parse integers.
    """
    by_pci = [gpu.uuid for gpu in sorted(gpus, key=lambda gpu: gpu.pci)]
    if sorted(order) != sorted(by_pci):
        logger.warning("the order in the claim's configuration names other GPUs than its allocation; it is left out")
        return {}
    if list(order) == by_pci:
        return {}
    return {_ORDER: "PCI_BUS_ID", _VISIBLE: ",".join(str(by_pci.index(uuid)) for uuid in order)}
