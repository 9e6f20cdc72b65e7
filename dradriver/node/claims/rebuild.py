"""Claims whose entries a newer agent wrote: before a rollback of the driver, this node's agent was that one.

Their pods run. What the containers were given is in the CDI spec, which stands as it is; what the claim holds is in the
API. Both together make an entry of this agent's own. All that is taken from the newer file is which claim it is of,
and of that the API server decides.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.api.objects import ResourceClaim
from dradriver.errors import DriverError
from dradriver.node.claims import cdi
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.claims.container_env import config_for
from dradriver.node.container_edits import Edits
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.kinds import AllocatedDevice, MadeKind
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # of objects, by the API's rule


class Identity(msgspec.Struct, frozen=True):
    """Which claim an entry is of: these fields stand where they stand in every version."""

    uid: str
    namespace: str
    name: str


class _AnyFile(msgspec.Struct):
    entry: Identity


def identity(text: bytes, uid: str) -> Identity | None:
    """Return which claim a newer agent's file is of; None where it does not say, or says another."""
    try:
        found = msgspec.json.decode(text, type=_AnyFile).entry
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    named = all(_NAME.fullmatch(part) for part in (found.namespace, found.name))
    return found if found.uid == uid and named else None


def rebuilt(
    claim: ResourceClaim,
    edits: Mapping[str, Edits],
    machine: Machine,
    device_manager: DeviceManager,
    *,
    node: str,
    boot: str,
) -> PreparedClaim | None:
    """Return what was prepared for the claim; None where its spec says what this agent would lose.

    Args:
        claim: The claim as the API server has it.
        edits: What its CDI spec brings to containers, by the names of the spec's devices.
        machine: Tells the GPUs' own identities; of one that is lost now it is made from the device's name.
        device_manager: Knows what others' specifications bring.
        node: This node's pool.
        boot: Id of this boot.
    """
    left = dict(edits)
    meta = claim.metadata
    bare = PreparedClaim(uid=meta.uid, namespace=meta.namespace, name=meta.name, boot=boot, devices=())
    devices = []
    for result in claim.results:
        request = result.request.split("/", 1)[0]
        config = None
        with contextlib.suppress(DriverError):  # a newer agent's word, maybe; a whole GPU needs none
            config = config_for(claim, result)
        try:
            found = device_manager.find(
                machine, AllocatedDevice(result.device, request, result.consumed_capacity, config)
            )
        except DriverError as error:
            logger.warning("claim %s/%s: %s", meta.namespace, meta.name, error)
            return None
        kind, gpu = (None, None) if found is None else (found.kind, found.gpu)
        if result.pool != node or isinstance(kind, MadeKind):
            return None
        device = PreparedDevice(
            request=request,
            pool=result.pool,
            device=result.device,
            uuid=result.device.replace("gpu-", "GPU-", 1) if gpu is None else gpu.uuid,
            part=kind.name if kind is not None and kind.part else "",
            share_id=result.share_id,
            admin=bool(result.admin_access),
        )
        others = kind.edits(gpu).cdi if kind is not None and gpu is not None else ()
        own = left.pop(cdi.device_name(bare, device), Edits())
        devices.append(msgspec.structs.replace(device, edits=own + Edits(cdi=others)))
    if left or not devices:
        return None
    return msgspec.structs.replace(bare, devices=tuple(devices))
