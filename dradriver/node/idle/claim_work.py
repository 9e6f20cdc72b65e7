"""Whether a claim's devices worked, by the work of their GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.gpu_work import UNKNOWN, GpuWork
from dradriver.topology.machine import Machine

PodOf = Callable[[int], str | None]
"""Gives the uid of a process's pod; None where nobody knows."""


def worked(
    claim: PreparedClaim,
    work: Mapping[str, GpuWork],
    *,
    users: Mapping[str, Collection[str]],
    sharing: Mapping[str, Collection[str]],
    machine: Machine | None,
    pod_of: PodOf,
) -> bool | None:
    """Return whether any device of a claim worked; None where none is known to have, and some may have.

    A GPU of its own worked for it. One that claims share worked for it where a process of its pods did; not, where all
    that did are of pods that have it by another claim: whose others are - an MPS server's, somebody's at a terminal -
    nobody knows.

    Args:
        claim: The claim.
        work: What its GPUs did, by uuid.
        users: The pods of each claim, by uid; of one that is not in it they are not known.
        sharing: The claims that have something of each GPU, by its uuid.
        machine: The machine, which has the numbers of MIG instances.
        pod_of: Says whose a process is.
    """
    said: set[bool | None] = set()
    for device in claim.devices:
        if device.admin:
            continue
        did = work.get(device.uuid, UNKNOWN)
        if did.instances is not None or device.told.get("type") == "mig":
            said.add(_instance(device, did, machine))
        elif did.works and device.part:
            said.add(_share(claim.uid, did, users, sharing.get(device.uuid, ()), pod_of))
        else:
            said.add(did.works)
    if True in said:
        return True
    return None if None in said or not said else False


def _instance(device: PreparedDevice, did: GpuWork, machine: Machine | None) -> bool | None:
    """Return False of a MIG instance without a process, else None; of a GPU in MIG mode that is whole, of all of it."""
    if did.instances is None:
        return None
    own = device.told.get("uuid")
    if not did.instances or own is None:
        return did.works
    instances = [one for gpu in machine.gpus for one in gpu.mig or ()] if machine is not None else []
    number = next((one.gpu_instance for one in instances if one.uuid == own), None)
    return None if number is None or number in did.instances else False


def _share(
    uid: str, did: GpuWork, users: Mapping[str, Collection[str]], sharing: Collection[str], pod_of: PodOf
) -> bool | None:
    if did.pids is None or uid not in users:
        return None
    pods = {pod_of(pid) for pid in did.pids}
    if pods & set(users[uid]):
        return True
    others = {pod for other in sharing if other != uid for pod in users.get(other, ())}
    # Of a GPU that worked, with no process that did, nobody knows for whom.
    return False if pods and pods <= others else None
