"""Decides from the work of GPUs whether a claim's devices worked; ``idle_watch`` calls it."""

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
    """Return whether any device of a claim worked; None if that is unknown.

    All work of a whole GPU counts for its claim. For a shared GPU, the processes that did the work decide:

    - A process of the claim's pods: the claim worked.
    - Only processes of pods that have the GPU by other claims: the claim did not work.
    - Other processes, such as an MPS server or a shell on the node: unknown.

    Args:
        claim: The claim.
        work: The work of GPUs since the last check, by uuid.
        users: The uids of each claim's pods, by the claim's uid; a claim without an entry has unknown pods.
        sharing: The uids of the claims that have a fraction of each GPU, by the GPU's uuid.
        machine: The machine, which has the numbers of MIG instances.
        pod_of: Returns the pod of a process.
    """
    # True, False or None (unknown) of each device.
    answers: set[bool | None] = set()
    for device in claim.devices:
        # Admin access watches a GPU, and does not use it.
        if device.admin:
            continue

        # Of a GPU in MIG mode the numbers of the instances with processes are known, no more.
        gpu_work = work.get(device.uuid, UNKNOWN)
        if gpu_work.instances is not None or device.told.get("type") == "mig":
            answers.add(_instance(device, gpu_work, machine))
        # A share of a GPU that worked: the processes tell whose work it was.
        elif gpu_work.works and device.part:
            answers.add(_share(claim.uid, gpu_work, users, sharing.get(device.uuid, ()), pod_of))
        else:
            answers.add(gpu_work.works)
    if True in answers:
        return True
    return None if None in answers or not answers else False


def _instance(device: PreparedDevice, did: GpuWork, machine: Machine | None) -> bool | None:
    """Return whether a device on a GPU in MIG mode worked; None if unknown.

    The driver reports only which MIG instances have processes, not how much they work. So there are these cases:

    - The driver did not report the instances: None.
    - The device is a MIG instance without a process: False.
    - The device is a MIG instance with a process, or its number is unknown: None.
    - The device is the whole GPU, or no instance on the GPU has a process: the answer for the whole GPU.
    """
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
