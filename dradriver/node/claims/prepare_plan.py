"""Makes the plan to prepare an allocated claim on this machine: a pure function, called by ``prepare``.

A result is one entry of the claim's allocation: one device that was allocated for one request. Container edits are what
a device adds to a container: device nodes, mounts and variables. A fraction is a MIG instance or a share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dradriver.api.base.dra_objects import AllocationResult, ResourceClaim
from dradriver.api.claims.opaque_config import ClaimConfig
from dradriver.node.claims.allocated_claim import config_for, request_of
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.claims.container_env import ClaimRequest, ContainerEnv
from dradriver.node.devices.device_kinds import AllocatedDevice, MadeKind
from dradriver.node.devices.device_manager import Device, DeviceManager
from dradriver.node.devices.hardware_journal import Made
from dradriver.node.devices.whole_gpus import named
from dradriver.node.errors import ClaimError, DeviceMissingError
from dradriver.topology.machine import Gpu, Machine


class Plan(NamedTuple):
    """The plan to prepare a claim.

    Attributes:
        claim: The answer for the kubelet. Devices that still have to be made have no container edits yet.
        gpus: The GPU of each of the claim's devices.
        intents: The hardware changes that must be made first, in the order of the devices.
        files: Returns the files to mount into the containers, by name. Its argument is the claim after all its devices
            were made.
    """

    claim: PreparedClaim
    gpus: tuple[Gpu, ...]
    intents: tuple[Made, ...]
    files: Callable[[PreparedClaim], Mapping[str, bytes]]

    def complete(self, made: Sequence[Made], device_manager: DeviceManager) -> PreparedClaim:
        """Return the prepared claim with the container edits of the devices that were made for it.

        Raises:
            ClaimError: Two devices of a request put different things at one path of the container.
            DriverError: The container edits of a device cannot be known now.
        """
        by_number = {change.number: change for change in made}
        devices = list(self.claim.devices)
        for number, change in by_number.items():
            own = device_manager.edits(self.gpus[number], change)
            device = devices[number]
            devices[number] = msgspec.structs.replace(
                device,
                edits=own + device.edits,
                told=device_manager.told(change),
                wanted=change.wanted,
                done=change.done,
                driver=change.driver,
            )
        _refuse_clash(devices)
        return msgspec.structs.replace(self.claim, devices=tuple(devices))


def _refuse_clash(devices: Sequence[PreparedDevice]) -> None:
    known: dict[tuple[str, str], str] = {}
    for device in devices:
        for mount in device.edits.mounts:
            if known.setdefault((device.request, mount.path), mount.host_path) != mount.host_path:
                raise ClaimError(
                    f"request {device.request}: two of its devices mount different files at {mount.path}, and a "
                    "container can have only one there. Write one request for each device, and use each request in "
                    "another container."
                )


def plan(
    claim: ResourceClaim,
    machine: Machine,
    device_manager: DeviceManager,
    container_env: ContainerEnv,
    *,
    node: str,
    boot: str,
    below: Machine | None = None,
) -> Plan:
    """Return the plan to prepare an allocated claim on this machine.

    The plan's devices are in the order of the allocation. Results for devices of other DRA drivers are ignored. If the
    claim has no result of this driver, the plan has no devices.

    Args:
        claim: The claim as the API server has it.
        machine: The machine as it is now.
        device_manager: Finds devices on the machine.
        container_env: Makes the environment and the files that containers get.
        node: The name of the node and of its pool.
        boot: Id of this boot.
        below: The physical server below a virtual machine; None if unknown or not virtual.

    Raises:
        ClaimError: The claim is not allocated, or has a device of another node, or requests a file that cannot be
            written.
        WordError: The claim's configuration is refused.
        DeviceMissingError: A device is not on the machine now.
    """
    if claim.status.allocation is None:
        raise ClaimError("the claim is not allocated")

    # By result of this driver: the GPU, and the device as the ledger will have it. ``intents`` are what must be made.
    gpus: list[Gpu] = []
    devices: list[PreparedDevice] = []
    intents: list[Made] = []
    by_request: dict[str, ClaimRequest] = {}

    # 1. The device of each result. MIG instances and shares do not exist yet, so they become intents.
    for number, result in enumerate(claim.results):
        # A pool is one node's devices, and has the node's name.
        if result.pool != node:
            raise ClaimError(f"device {result.device} is in pool {result.pool}, not on this node, {node}")
        request = request_of(result)
        claim_request = by_request.get(request) or ClaimRequest((), (), config_for(claim, result))
        located = _device_of_result(result, claim_request.config, machine, device_manager, node=node)
        device = _prepared_device(result, located)
        if isinstance(located.kind, MadeKind):
            intents.append(_intent(claim, number, device, located, boot))
            device = msgspec.structs.replace(device, made=intents[-1].key)
        else:
            device = msgspec.structs.replace(device, edits=located.kind.edits(located.gpu))
        gpus.append(located.gpu)
        devices.append(device)
        by_request[request] = claim_request._replace(
            results=(*claim_request.results, result), gpus=(*claim_request.gpus, located.gpu)
        )

    # 2. The environment and files of each request. A container gets all devices of a request, so the first device
    # brings them (``edits`` are what CDI adds to a container).
    files: dict[str, bytes] = {}
    for request, claim_request in by_request.items():
        position = next(index for index, device in enumerate(devices) if device.request == request)
        container = container_env.env_and_files(claim, request, claim_request, machine, below=below)
        devices[position] = msgspec.structs.replace(devices[position], edits=devices[position].edits + container.edits)
        files |= container.files

    # 3. Device metadata has attributes that are known only once the devices are made: it is written then.
    meta = claim.metadata
    planned = PreparedClaim(uid=meta.uid, namespace=meta.namespace, name=meta.name, boot=boot, devices=tuple(devices))
    return Plan(planned, tuple(gpus), tuple(intents), lambda done: files | container_env.about(claim, done, machine))


def _device_of_result(
    result: AllocationResult, config: ClaimConfig | None, machine: Machine, device_manager: DeviceManager, *, node: str
) -> Device:
    """Return the device of this machine that an allocation result names.

    Raises:
        ClaimError: The claim's configuration for the device is not understood.
        DeviceMissingError: The device is not on the machine now.
    """
    wish = AllocatedDevice(result.device, request_of(result), result.consumed_capacity, config)
    located = device_manager.find(machine, wish)
    if located is None:
        if named(machine, result.device) is not None:
            raise DeviceMissingError(f"GPU {result.device} cannot be used whole now, because it is in MIG mode")
        raise DeviceMissingError(f"GPU {result.device} is not on node {node} now")
    return located


def _prepared_device(result: AllocationResult, located: Device) -> PreparedDevice:
    """Return the checkpoint's record of an allocated device, still without its container edits.

    ``located`` is the device as it was found on the machine.
    """
    return PreparedDevice(
        request=request_of(result),
        pool=result.pool,
        device=result.device,
        uuid=located.gpu.uuid,
        part=located.kind.name if located.kind.part else "",
        told=dict(located.told),
        share_id=result.share_id,
        admin=bool(result.admin_access),
    )


def _intent(claim: ResourceClaim, number: int, device: PreparedDevice, located: Device, boot: str) -> Made:
    """Return the journal entry that says which device will be made for the claim.

    Args:
        claim: The claim.
        number: Number of the device in the claim.
        device: The device to prepare.
        located: The device with its kind and with the claim's request for it.
        boot: Id of this boot.

    Raises:
        ClaimError: The claim requests admin access to a fraction. A fraction does not exist before the agent makes it
            for a claim.
    """
    if device.admin:
        raise ClaimError(f"device {device.device}: a request with adminAccess gets whole GPUs, no shares or MIG slices")
    return Made(
        owner=claim.metadata.uid,
        number=number,
        boot=boot,
        kind=located.kind.name,
        device=device.device,
        uuid=device.uuid,
        share_id=device.share_id,
        wanted=located.asked,
    )
