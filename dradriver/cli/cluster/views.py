"""From slices and claims to what is shown: pure functions.

All text from the cluster is made safe to print here, where it comes in: pods, claims and machines are named by others,
and a terminal obeys escape sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dradriver.allocator import MAX_GPUS, Choice, Constraint, NoPlaceError, Whole, choose
from dradriver.api import claims as claims_of
from dradriver.api import names, quantity, results, slices
from dradriver.api.errors import WordError
from dradriver.api.objects import AllocationResult, ResourceSlice
from dradriver.api.objects import Device as SliceDevice
from dradriver.api.pins import Claim, Device, owners, pin, share_of, slice_of
from dradriver.cli.cluster.model import GpuView, Hold, Holder, NodeView
from dradriver.topology.errors import TopologyError
from dradriver.topology.groups import group
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.natural import natural
from dradriver.view.plain import plain

Held = Mapping[Device, Sequence[Holder]]


def views(
    found: Iterable[ResourceSlice], claims: Iterable[Claim], *, only: Iterable[str] = ()
) -> tuple[list[NodeView], list[str]]:
    """Return the nodes in natural order, and a sentence on whatever could not be read or looks wrong.

    Args:
        found: Slices of any driver.
        claims: Claims of all namespaces.
        only: Names of the nodes that are wanted; all of them where none is named.
    """
    pools: dict[str, list[ResourceSlice]] = {}
    for piece in found:
        if piece.spec.driver == names.DRIVER:
            pools.setdefault(piece.spec.pool.name, []).append(piece)
    wanted = set(only) or pools.keys()
    warnings = [f"node {name}: it has no slices of driver {names.DRIVER}" for name in sorted(wanted - pools.keys())]
    listed = ((pool, device) for pool, found in pools.items() for piece in found for device in piece.spec.devices)
    held = _held(claims, {(pool, one.name): one for pool, one in listed if one.allow_multiple_allocations})
    nodes = []
    for pool in sorted(wanted & pools.keys(), key=natural):
        current = _current(pool, pools[pool], warnings)
        machine = _machine(pool, current, warnings)
        if machine is not None:
            nodes.append(_node(pool, machine, current, held))
            warnings += _doubts(pool, machine, current, held)
    return nodes, [plain(warning) for warning in warnings]


def _held(claims: Iterable[Claim], shared: Mapping[Device, SliceDevice]) -> Held:
    """Return the holders of every device: what was allocated, else what our controller pinned the claim to."""
    held: dict[Device, list[Holder]] = {}
    for claim in sorted(claims, key=lambda c: c.key):
        for device, holder in _holds(claim, shared):
            held.setdefault(device, []).append(holder)
    for holders in held.values():
        holders.sort(key=lambda holder: list(Hold).index(holder.hold))
    return held


def _holds(claim: Claim, shared: Mapping[Device, SliceDevice]) -> Iterator[tuple[Device, Holder]]:
    namespace, name = (plain(part) for part in claim.key)
    promise = pin(claim)
    parts = {} if promise is None else claims_of.parts_of(promise.choice, promise.uuids)
    if claim.status.allocation is None:
        waiting = owners(claim)
        if promise is not None and waiting:
            for request, uuids in promise.uuids.items():
                part = results.described(parts[request]) if request in parts else ""
                who = tuple(plain(name) for name, _ in waiting)
                holder = Holder(namespace=namespace, claim=name, pods=who, hold=Hold.PROMISED, part=plain(part))
                for uuid in uuids:
                    yield (promise.choice.node, slices.device_name(uuid)), holder
        return
    users = sorted(claim.status.reserved_for, key=lambda user: natural(user.name))
    pods = tuple(plain(u.name if u.resource == "pods" else f"{u.resource} {u.name}") for u in users)
    for result in claim.results:
        hold = Hold.ADMIN if result.admin_access else Hold.ALLOCATED
        own, device = parts.get(result.request), (result.pool, result.device)
        part = _part(claim, result) if own is None else results.described(own)
        # Of a device that claims may share, who has all of it gets the id of a share too.
        share = "" if not part and _is_all(result, shared.get(device)) else plain(result.share_id or "")
        yield device, Holder(namespace=namespace, claim=name, pods=pods, hold=hold, share=share, part=plain(part))


def _part(claim: Claim, result: AllocationResult) -> str:
    """Return what a claim that is not our controller's has of a GPU; empty for all of it, and where nobody knows."""
    if (share := share_of(result.consumed_capacity)) is not None:
        return f"{share.cores}%/{share.memory_mib}Mi"
    found = slice_of(claim, result)
    return "" if found is None else f"{found.profile}@{found.start}"


def _is_all(result: AllocationResult, device: SliceDevice | None) -> bool:
    """Return whether a claim has all compute of a device that claims may share: unlike memory no more is promised."""
    capacity = {} if device is None else device.capacity
    compute = next((name for name in (names.CAPACITY_CORES, names.CAPACITY_COMPUTE_SLICES) if name in capacity), "")
    try:
        taken = quantity.whole(result.consumed_capacity.get(compute, "0"))
        return compute != "" and taken >= quantity.whole(str(capacity[compute].get("value")))
    except WordError:
        return False


def _current(pool: str, found: Sequence[ResourceSlice], warnings: list[str]) -> list[ResourceSlice]:
    """Return the slices of the newest generation that is complete; none where there is no such one."""
    known = slices.generations(found, slices.place_of)
    for one in known:
        if one.complete:
            if one is not known[0]:
                warnings.append(f"node {pool}: shown as of generation {one.number}")
            return one.slices
        warnings.append(f"node {pool}: {len(one.slices)} of {one.said} slices of generation {one.number} are there")
    return []


def _machine(pool: str, current: Sequence[ResourceSlice], warnings: list[str]) -> Machine | None:
    """Return the machine, its text safe to print; None where nothing can be shown of it."""
    cause = "nothing of it can be shown" if not current else ""
    if any(s.spec.node_name != pool for s in current):
        cause = "its slices are not those of the node of that name"
    machine = None
    if not cause:
        try:
            machine = slices.read_machine(current)
            cause = f"its slice has no annotation {names.MACHINE}; an older node agent may have written it"
        except TopologyError as error:
            cause = f"annotation {names.MACHINE}: {error}"
    if machine is None:
        warnings.append(f"node {pool}: {cause}; it is left out")
        return None
    safe: Machine = msgspec.convert(_plain(msgspec.to_builtins(machine)), Machine)
    return safe


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _node(pool: str, machine: Machine, current: Iterable[ResourceSlice], held: Held) -> NodeView:
    listed = {device.name: device for piece in current for device in piece.spec.devices}
    parts: dict[str, list[SliceDevice]] = {}
    for device in listed.values():
        if isinstance(parent := device.attributes.get("parentUUID", {}).get("string"), str):
            parts.setdefault(slices.device_name(parent), []).append(device)
    gpus = []
    for gpu in machine.gpus:
        name = slices.device_name(gpu.uuid)
        own = parts.get(name, [])
        holders = [
            *held.get((pool, name), ()),
            *(one for part in own for one in _of_part(part, held.get((pool, part.name)))),
        ]
        shown = listed.get(name) or next(iter(own), None)
        gpus.append(GpuView(gpu=gpu, holders=tuple(holders), blocked=_blocked(gpu, shown, own)))
    node = NodeView(name=plain(pool), machine=machine, groups=group(machine), gpus=tuple(gpus))
    return msgspec.structs.replace(node, nvlink_set=_nvlink_set(machine, node.free))


def _of_part(device: SliceDevice, holders: Sequence[Holder] | None) -> list[Holder]:
    """Return who holds a device that is a part of a GPU: who has a MIG slice that is one, has that slice."""
    part = _slice(device)
    return [msgspec.structs.replace(one, part=one.part or part) for one in holders or ()]


def _slice(device: SliceDevice) -> str:
    """Return a MIG slice in the words of pods, ``1g.10gb@6``; empty for any other device."""
    profile, start = (device.attributes.get(name, {}) for name in ("profile", "placement"))
    return plain(f"{profile['string']}@{start['int']}") if "string" in profile and "int" in start else ""


def _blocked(gpu: Gpu, device: SliceDevice | None, parts: Iterable[SliceDevice]) -> str:
    if gpu.mig or (gpu.mig is not None and device is None):
        there = ", ".join(_slice(one) + " (tainted)" * one.blocked for one in parts)
        return f"in MIG mode, with {there}" if there else "in MIG mode"
    if device is None:
        return "not in the node's slices"
    taints = [f"{taint.key}:{taint.effect}" for taint in device.taints if taint.blocks]
    return plain(f"tainted {', '.join(taints)}") if taints else ""


def _nvlink_set(machine: Machine, free: Sequence[int]) -> Choice | None:
    """Ask the allocator itself, so that what is shown is what a pod would get."""
    if len(machine.gpus) > MAX_GPUS:
        return None
    for count in range(len(free), 1, -1):
        try:
            return choose(machine, free, Whole(containers=(count,), required=(Constraint.NVLINK,)))
        except NoPlaceError:
            continue
    return None


def _doubts(pool: str, machine: Machine, current: Iterable[ResourceSlice], held: Held) -> Iterator[str]:
    """Say of devices what should not be: held though they are not there, or allocated twice."""
    there = {slices.device_name(gpu.uuid) for gpu in machine.gpus}
    there |= {device.name for piece in current for device in piece.spec.devices}
    for (where, device), holders in sorted(held.items(), key=lambda item: item[0]):
        if where != pool:
            continue
        claims = [f"{h.namespace}/{h.claim}" for h in holders if h.hold is Hold.ALLOCATED]
        whole = [h for h in holders if h.hold is Hold.ALLOCATED and not h.share]
        if device not in there:
            yield f"node {pool}: {device} is not there, but held by claim {', '.join(claims) or 'promises only'}"
        elif whole and len(claims) > 1:
            yield f"node {pool}: {device} is allocated to several claims: {', '.join(claims)}"
