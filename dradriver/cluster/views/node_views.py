"""Nodes as users see them: each machine, its GPUs, and who holds them.

Unlike the picture, this has what no decision is made from: who monitors, why a GPU is handed out to nobody, an older
generation where the newest is not complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dradriver.allocator import MAX_GPUS, Choice, Constraint, NoPlaceError, Whole, choose
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import LEDGERS, OTHERS, OURS, Ledger
from dradriver.api.base.dra_objects import Device, ResourceSlice
from dradriver.api.base.objects import Taint
from dradriver.api.claims.pins import Claim
from dradriver.api.slices import lost_gpus, resource_slices
from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.cluster.records.devices import gpu_names, identity, is_gpu, slice_words
from dradriver.cluster.views.holder_names import Held, Hold, Holder, Where, held_by
from dradriver.topology.errors import TopologyError
from dradriver.topology.groups import Groups, group
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.natural import natural

NEVER_PLACED: Final = "never placed"
"""With this ``GpuView.blocked`` begins if the machine has more GPUs than the allocator places on."""
_IN_MIG_MODE: Final = "in MIG mode"
MODE_CHANGES: Final = names.PREFIX + "mode-changes"
"""The taint of a GPU whose mode the node agent is about to change, which is no fault."""
_MISSING: Final = "not in the node's slices"


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU.

    Attributes:
        gpu: The GPU.
        holders: Who holds it: nobody, one claim, or several where that is shared, promised or for monitoring.
        blocked: Why the scheduler gives it to nobody, empty where it does.
        closed: Why its node takes no new pods; empty if it does, or if that is not known.
        reserved: For which waiting pod or gang it is reserved; empty for none, or if that is not known.
        taints: The taints of its device, or of its MIG slices if these are the devices. Each is there once.
    """

    gpu: Gpu
    holders: tuple[Holder, ...] = ()
    blocked: str = ""
    closed: str = ""
    reserved: str = ""
    taints: tuple[Taint, ...] = ()

    @property
    def taken_by(self) -> tuple[Holder, ...]:
        """Return who holds a GPU in the view of its node for itself: monitoring takes nothing."""
        return tuple(holder for holder in self.holders if holder.hold is not Hold.ADMIN)

    @property
    def is_in_mig_mode(self) -> bool:
        """Return whether nobody gets the GPU of this view whole because it is in MIG mode."""
        return self.blocked.startswith(_IN_MIG_MODE)

    @property
    def is_never_placed(self) -> bool:
        """Return whether nobody gets the GPU of this view because its machine is too large."""
        return self.blocked.startswith(NEVER_PLACED)

    @property
    def state(self) -> str:
        """Return the state of a GPU in the view of its node, the first of these that is true.

        ``allocated``, ``promised``, ``blocked``, ``closed``, ``reserved``, ``free``.
        """
        if self.taken_by:
            return self.taken_by[0].hold.value
        return "blocked" if self.blocked else "closed" if self.closed else "reserved" if self.reserved else "free"

    @property
    def why_not_free(self) -> str:
        """Return in words why a GPU that nobody holds is not free in the view of its node; empty if it is."""
        return self.blocked or self.closed or (f"reserved for {self.reserved}" if self.reserved else "")

    @property
    def is_unhealthy(self) -> bool:
        """Return whether a GPU is out of use for its health: a fault taints it, or its node does not offer it."""
        return self.blocked == _MISSING or any(taint.blocks and taint.key != MODE_CHANGES for taint in self.taints)


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node.

    Attributes:
        name: The node's, which is also its pool's.
        machine: Its machine.
        groups: The machine's groups.
        gpus: Its GPUs, by position in the machine.
        nvlink_set: The largest set of two or more GPUs that ``policy: nvlink`` would give a pod now; None where there
            is none, and on machines that are larger than the allocator places on.
        lost: GPUs that were on the node and are not there any more, as its agent says.
    """

    name: str
    machine: Machine
    groups: Groups
    gpus: tuple[GpuView, ...]
    nvlink_set: Choice | None = None
    lost: tuple[LostGpu, ...] = ()

    @property
    def free(self) -> list[int]:
        """Return the machine's own numbers of the node's free GPUs."""
        return [view.gpu.index for view in self.gpus if view.state == "free"]

    @property
    def unhealthy(self) -> int:
        """Return how many GPUs of the node are unhealthy, or lost."""
        return sum(view.is_unhealthy for view in self.gpus) + len(self.lost)


class _Node(msgspec.Struct):
    """What the slices of one node say.

    Attributes:
        name: The node's.
        machine: Its machine.
        driver: Whose devices it has.
        devices: These by our names, under which claims are pinned to them.
        parts: Those of them that are parts of a GPU, by the GPU's device name and their own.
        called: Our names by the driver's, where these are others.
        lost: The GPUs that the node lost.
    """

    name: str
    machine: Machine
    driver: str
    devices: dict[str, Device]
    parts: dict[str, dict[str, Device]]
    called: dict[str, str]
    lost: tuple[LostGpu, ...]


class NotOffered(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that new pods do not get although nothing is wrong with them.

    Attributes:
        closed: Why nodes take no new pods, by the node's name.
        reserved: The reserved GPUs, each with whom it is for, by the node's name and the name of its device.
    """

    closed: Mapping[str, str] = {}
    reserved: Mapping[str, Mapping[str, str]] = {}


_Holders = Mapping[str, Sequence[Holder]]  # by our name of a node's device


def views(
    pieces: Iterable[ResourceSlice],
    claims: Iterable[Claim],
    *,
    only: Iterable[str] = (),
    not_offered: NotOffered = NotOffered(),  # noqa: B008 - it is frozen
) -> tuple[list[NodeView], list[str]]:
    """Return the views of nodes in natural order, and warnings.

    Warnings are about what cannot be read or looks wrong.

    Args:
        pieces: Slices of all drivers. If ours describe only the machine, another driver allocates its GPUs.
        claims: Claims of all namespaces.
        only: Names of the nodes to show; all nodes if it is empty.
        not_offered: GPUs that new pods do not get, as far as that is known.
    """
    our_slices: dict[str, list[ResourceSlice]] = {}  # by node
    other_slices: dict[str, list[ResourceSlice]] = {}
    shared_devices: dict[Where, Device] = {}
    for piece in pieces:
        driver, pool = piece.spec.driver, piece.spec.pool.name
        if driver not in LEDGERS:  # it is no driver of GPUs: neither this one, nor another that can allocate them
            continue
        slices = our_slices if driver == OURS.driver else other_slices
        slices.setdefault(pool, []).append(piece)
        for device in piece.spec.devices:
            if device.allow_multiple_allocations:
                shared_devices[driver, pool, device.name] = device

    names_to_show = set(only) or our_slices.keys()
    names_without_slices = sorted(names_to_show - our_slices.keys())
    warnings = [f"node {name}: it has no slices of driver {names.DRIVER}" for name in names_without_slices]
    held = held_by(claims, shared_devices)  # by node: driver, device and holder
    nodes = []
    for name in sorted(names_to_show & our_slices.keys(), key=natural):
        node = _node(name, our_slices[name], other_slices.get(name, ()), warnings)
        if node is not None:
            holders = _holders(node, held)
            nodes.append(_view(node, holders, not_offered))
            warnings += _doubts(node, holders)
    return nodes, warnings


def _node(
    name: str, our_slices: Sequence[ResourceSlice], other_slices: Sequence[ResourceSlice], warnings: list[str]
) -> _Node | None:
    """Return the machine and the devices of a node by its slices.

    Args:
        name: The node's name.
        our_slices: The node's slices of this driver.
        other_slices: The node's slices of other GPU drivers.
        warnings: Gets warnings.

    Returns:
        None, with a warning, if the node cannot be shown.
    """
    # 1. The driver that allocates the GPUs, and its slices.
    current = _current(name, our_slices, warnings)
    #    Slices of this driver that describe the machine and have no devices leave the allocation to another driver.
    is_other_allocating = bool(other_slices) and all(map(resource_slices.is_machine_alone, current))
    ledger = _whose(other_slices) if is_other_allocating else OURS
    allocated = current
    if ledger is not OURS:
        allocated = _current(name, [piece for piece in other_slices if piece.spec.driver == ledger.driver], warnings)

    # 2. The machine. Slices must be those of the node that they name.
    cause = "" if current and allocated else "nothing of it can be shown"
    if any(piece.spec.node_name != name for piece in (*current, *allocated)):
        cause = "its slices are not those of the node of that name"
    machine = None
    if not cause:
        try:
            machine = resource_slices.read_machine(current)
            cause = f"its slice has no annotation {names.MACHINE}; an older node agent may have written it"
        except TopologyError as error:
            cause = f"annotation {names.MACHINE}: {error}"
    if machine is None:
        warnings.append(f"node {name}: {cause}; it is left out")
        return None

    # 3. The devices. Another driver calls a GPU otherwise than we do: ``our_names`` has our name of its whole GPUs.
    #    ``gpu_of_device`` has our name of the GPU that a device is or is a part of.
    devices = {device.name: device for piece in allocated for device in piece.spec.devices}
    our_names: dict[str, str] = {}
    if is_other_allocating:
        gpu_of_device = gpu_names({name: identity(device, ledger) for name, device in devices.items()}, machine)
        our_names = {name: gpu for name, gpu in gpu_of_device.items() if is_gpu(devices[name], ledger)}
    else:
        gpu_of_device = {
            name: resource_slices.device_name(uuid)
            for name, device in devices.items()
            if (uuid := device.text("parentUUID"))
        }
    parts: dict[str, dict[str, Device]] = {}  # MIG slices that are devices, by our name of their GPU
    for device_name, gpu in gpu_of_device.items():
        if device_name not in our_names:
            parts.setdefault(gpu, {})[device_name] = devices[device_name]
    renamed = {our_names.get(device_name, device_name): device for device_name, device in devices.items()}
    return _Node(name, machine, ledger.driver, renamed, parts, our_names, lost_gpus.read(current, machine))


def _whose(theirs: Sequence[ResourceSlice]) -> Ledger:
    """Return which other driver has a node's devices, by its slices."""
    having = {piece.spec.driver for piece in theirs if piece.spec.devices}
    return next((one for one in OTHERS if one.driver in having), OTHERS[0])


def _current(name: str, pool: Sequence[ResourceSlice], warnings: list[str]) -> list[ResourceSlice]:
    """Return the slices of a pool's newest complete generation; none if no generation is complete."""
    generations = resource_slices.generations(pool, resource_slices.place_of)
    for generation in generations:
        if generation.complete:
            if generation is not generations[0]:
                warnings.append(f"node {name}: shown as of generation {generation.number}")
            return generation.slices
        counts = f"{len(generation.slices)} of {generation.said} slices"
        warnings.append(f"node {name}: {counts} of generation {generation.number} are there")
    return []


def _holders(node: _Node, held: Held) -> _Holders:
    """Return who holds each device of a node, those who have it first, and who only monitors it last."""
    by_device: dict[str, list[Holder]] = {}
    for driver, device, holder in held.get(node.name, ()):
        if driver == node.driver:
            by_device.setdefault(node.called.get(device, device), []).append(holder)
        elif driver == OURS.driver:  # what it promises, whosever the devices are
            by_device.setdefault(device, []).append(holder)
    for holders in by_device.values():
        holders.sort(key=lambda holder: list(Hold).index(holder.hold))
    return by_device


def _view(node: _Node, holders: _Holders, not_offered: NotOffered) -> NodeView:
    gpus = []
    count = len(node.machine.gpus)
    too_large = f"{NEVER_PLACED}: the machine has {count} GPUs, and at most {MAX_GPUS} are supported"
    too_large = too_large if count > MAX_GPUS else ""
    closed, reserved = not_offered.closed.get(node.name, ""), not_offered.reserved.get(node.name, {})
    for gpu in node.machine.gpus:
        name = resource_slices.device_name(gpu.uuid)
        parts = node.parts.get(name, {})
        who = list(holders.get(name, ()))
        for part, device in parts.items():  # who has a MIG slice that is a device, has that slice
            words = slice_words(device)
            who += [msgspec.structs.replace(holder, part=holder.part or words) for holder in holders.get(part, ())]
        shown = node.devices.get(name) or next(iter(parts.values()), None)
        devices = [node.devices[name]] if name in node.devices else list(parts.values())
        taints = tuple(dict.fromkeys(taint for device in devices for taint in device.taints))
        blocked = _blocked(gpu, shown, parts.values()) or ("" if who else too_large)
        gpus.append(
            GpuView(
                gpu=gpu, holders=tuple(who), blocked=blocked, closed=closed, reserved=reserved.get(name, ""),
                taints=taints,
            )
        )  # fmt: skip
    view = NodeView(name=node.name, machine=node.machine, groups=group(node.machine), gpus=tuple(gpus), lost=node.lost)
    return msgspec.structs.replace(view, nvlink_set=_nvlink_set(node.machine, view.free))


def _blocked(gpu: Gpu, device: Device | None, parts: Iterable[Device]) -> str:
    if gpu.mig or (gpu.mig is not None and device is None):
        there = ", ".join(slice_words(part) + " (tainted)" * part.blocked for part in parts)
        return f"{_IN_MIG_MODE}, with {there}" if there else _IN_MIG_MODE
    if device is None:
        return _MISSING
    taints = [f"{taint.key}:{taint.effect}" for taint in device.taints if taint.blocks]
    return f"tainted {', '.join(taints)}" if taints else ""


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


def _doubts(node: _Node, held: _Holders) -> Iterator[str]:
    """Say of devices what should not be: held though they are not there, or allocated twice."""
    there = node.devices.keys() | {resource_slices.device_name(gpu.uuid) for gpu in node.machine.gpus}
    for device, holders in sorted(held.items(), key=lambda item: item[0]):
        claims = [f"{h.namespace}/{h.claim}" for h in holders if h.hold is Hold.ALLOCATED]
        whole = [h for h in holders if h.hold is Hold.ALLOCATED and not h.share]
        if device not in there:
            who = ", ".join(claims) or "promises only"
            yield f"node {node.name}: {device} is not there, but held by claim {who}"
        elif whole and len(claims) > 1:
            yield f"node {node.name}: {device} is allocated to several claims: {', '.join(claims)}"
