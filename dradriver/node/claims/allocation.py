"""From an allocated claim to what will be prepared: a pure function."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from dradriver.api import config, names
from dradriver.api.config import ClaimConfig
from dradriver.api.objects import AllocationResult, DeviceConfig, ResourceClaim
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.devices.made import Made
from dradriver.node.devices.workshop import Workshop
from dradriver.node.edits import Edits
from dradriver.node.errors import ClaimError, DeviceMissingError
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

# Else NVIDIA's container runtime, where it is the default one, adds every GPU of the machine.
_HIDE: Final = ("NVIDIA_VISIBLE_DEVICES", "void")
_ORDER: Final = "CUDA_DEVICE_ORDER"
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class Plan(NamedTuple):
    """What preparing a claim means.

    Attributes:
        claim: What the kubelet will be answered; devices that have to be made lack what they bring.
        gpus: The GPU of each of the claim's devices.
        intents: What has to be made before, in the devices' order.
    """

    claim: PreparedClaim
    gpus: tuple[Gpu, ...]
    intents: tuple[Made, ...] = ()

    def complete(self, made: Sequence[Made], workshop: Workshop) -> PreparedClaim:
        """Return the claim with what the devices bring that were made for it."""
        by_number = {one.number: one for one in made}
        devices = list(self.claim.devices)
        for number, one in by_number.items():
            own = workshop.edits(one.kind, self.gpus[number], one)
            devices[number] = msgspec.structs.replace(devices[number], edits=own + devices[number].edits)
        return msgspec.structs.replace(self.claim, devices=tuple(devices))


def plan(claim: ResourceClaim, machine: Machine, workshop: Workshop, *, node: str, boot: str) -> Plan:
    """Return what preparing the claim on this machine means, its devices in the allocation's order.

    Only this driver's results count; a claim without any gives a plan without devices.

    Args:
        claim: The claim as the API server has it.
        machine: The machine as it is now.
        workshop: Knows the kinds of devices.
        node: The node's name, which is also its pool's.
        boot: Id of this boot.

    Raises:
        ClaimError: The claim is not allocated, or to another node's device.
        WordError: The claim's configuration is refused.
        DeviceMissingError: A device is not on the machine now.
    """
    if claim.status.allocation is None:
        raise ClaimError("the claim is not allocated")
    known = workshop.find(machine)
    gpus: list[Gpu] = []
    devices: list[PreparedDevice] = []
    intents: list[Made] = []
    by_request: dict[str, list[Gpu]] = {}
    configs: dict[str, ClaimConfig | None] = {}
    for number, result in enumerate(claim.results):
        if result.pool != node:
            raise ClaimError(f"device {result.device} is in pool {result.pool}, not on this node, {node}")
        if result.device not in known:
            raise DeviceMissingError(f"GPU {result.device} is not on node {node} now")
        kind, gpu = known[result.device]
        request = result.request.split("/", 1)[0]
        device = PreparedDevice(
            request=request,
            pool=result.pool,
            device=result.device,
            uuid=gpu.uuid,
            share_id=result.share_id,
            admin=bool(result.admin_access),
        )
        if kind.makes:
            intent = Made(
                owner=claim.metadata.uid,
                number=number,
                boot=boot,
                kind=kind.name,
                device=result.device,
                uuid=gpu.uuid,
                share_id=result.share_id,
            )
            intents.append(intent)
            device = msgspec.structs.replace(device, made=intent.key)
        else:
            device = msgspec.structs.replace(device, edits=kind.edits(gpu, None))
        gpus.append(gpu)
        devices.append(device)
        by_request.setdefault(request, []).append(gpu)
        configs.setdefault(request, _config_for(result, claim.status.allocation.devices.config))
    for request, on in by_request.items():
        first = next(n for n, device in enumerate(devices) if device.request == request)
        told = Edits(env=_env(request, on, configs[request]))
        devices[first] = msgspec.structs.replace(devices[first], edits=devices[first].edits + told)
    planned = PreparedClaim(
        uid=claim.metadata.uid,
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        devices=tuple(devices),
    )
    return Plan(planned, tuple(gpus), tuple(intents))


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
