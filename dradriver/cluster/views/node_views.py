"""Views of nodes for people: each machine, its GPUs, and their users.

Unlike the cluster cache, a view has facts that no decision needs: claims that only monitor a GPU, and the reason why a
GPU cannot be allocated. If the newest generation of slices is not complete, it shows an older one.

A GPU is *lost* if it was on the node and has disappeared. A *fraction* of a GPU is a share or a MIG slice.
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
from dradriver.api.claims import pins
from dradriver.api.claims.pins import Claim
from dradriver.api.slices import lost_gpus, resource_slices
from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.api.slices.mig_devices import gpu_of_placement
from dradriver.cluster.gpus.taint_rules import TaintRules
from dradriver.cluster.records.devices import gpu_names, identity, is_gpu, parts_of, slice_words
from dradriver.cluster.records.slice_records import MODE_CHANGES
from dradriver.cluster.views.holder_names import Held, Hold, Holder, Where, held_by
from dradriver.topology.errors import TopologyError
from dradriver.topology.groups import Groups, group
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.natural import natural

NEVER_PLACED: Final = "never placed"
"""With this ``GpuView.blocked`` begins if the machine has more GPUs than the allocator places on."""
_name: Final = resource_slices.device_name
_IN_MIG_MODE: Final = "in MIG mode"
_MISSING: Final = "not in the node's slices"
_FRACTIONS_ONLY: Final = "only shares or MIG slices of it are allocated"


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU.

    Attributes:
        gpu: The GPU.
        holders: The claims that use it: none, one, or several if it is shared, monitored or has tentative placements.
        blocked: Why the scheduler cannot allocate it; empty if it can.
        closed: Why its node accepts no new pods; empty if the node accepts them, or if that is not known.
        reserved: The waiting pod or gang that it is reserved for; empty for none, or if that is not known.
        fractions_only: Whether claims can only get shares or MIG slices of it.
        taints: The taints of its device. If each of its MIG slices is a device instead, their taints. Equal taints are
            listed once.
        is_shut: Whether taints or DeviceTaintRules keep new claims from its device. If each of its MIG slices is a
            device instead, whether they do so for every slice.
    """

    gpu: Gpu
    holders: tuple[Holder, ...] = ()
    blocked: str = ""
    closed: str = ""
    reserved: str = ""
    fractions_only: bool = False
    taints: tuple[Taint, ...] = ()
    is_shut: bool = False

    @property
    def taken_by(self) -> tuple[Holder, ...]:
        """Return the claims that use the GPU, without claims that only monitor it."""
        return tuple(holder for holder in self.holders if holder.hold is not Hold.ADMIN)

    @property
    def is_in_mig_mode(self) -> bool:
        """Return whether MIG mode keeps claims from getting the whole GPU."""
        return self.blocked.startswith(_IN_MIG_MODE)

    @property
    def is_never_placed(self) -> bool:
        """Return whether no claim gets the GPU because its machine has too many GPUs."""
        return self.blocked.startswith(NEVER_PLACED)

    @property
    def state(self) -> str:
        """Return the GPU's state, such as ``free``, by its name in ``gpu_states``.

        If several states apply, the first one in the list there counts.
        """
        if self.taken_by:
            return self.taken_by[0].hold.value
        if self.is_unhealthy:
            return "unhealthy"
        if self.is_shut or self.is_never_placed or (self.blocked and not self.fractions_only):
            return "blocked"
        if self.closed:
            return "unavailable"
        return "reserved" if self.reserved else "fractions" if self.fractions_only else "free"

    @property
    def why_not_free(self) -> str:
        """Return in words why a GPU without users is not free; empty if it is free."""
        reserved = f"reserved for {self.reserved}" if self.reserved else ""
        return self.blocked or self.closed or reserved or (_FRACTIONS_ONLY if self.fractions_only else "")

    @property
    def is_unhealthy(self) -> bool:
        """Return whether the GPU cannot be used because of a fault.

        A taint reports the fault, or the node does not offer the GPU.
        """
        has_fault = any(taint.blocks and taint.key != MODE_CHANGES for taint in self.taints)
        return self.blocked == _MISSING or (self.is_shut and has_fault)


class LostView(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that was on a node and has disappeared. The node's agent reports it, or a claim still has it.

    Attributes:
        index: Its number on the node; None if only a claim has it, and the claim does not say its number.
        pci: Its address on the PCI bus; empty if that is not known.
        uuid: Its UUID; in lower case if only the name of its device is known.
        holders: The claims that use it.
    """

    index: int | None
    pci: str = ""
    uuid: str
    holders: tuple[Holder, ...] = ()

    @property
    def label(self) -> str:
        """Return how the GPU is called on its node: ``GPU3``, or ``a GPU`` if its number is not known."""
        return "a GPU" if self.index is None else f"GPU{self.index}"

    @property
    def identity(self) -> str:
        """Return number, PCI address and UUID, as text for people."""
        return f"{self.label} ({', '.join(filter(None, (self.pci, self.uuid)))})"

    @property
    def described(self) -> str:
        """Return the GPU's identity and the pods that use it, as text for people."""
        users = ", ".join(dict.fromkeys(holder.who for holder in self.holders))
        return self.identity + (f", used by {users}" if users else "")


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node with its machine and GPUs, as ``gputopo`` shows it.

    Attributes:
        name: The node's name, which is also its pool's name.
        machine: Its machine.
        groups: The machine's groups of well-linked GPUs.
        gpus: Its GPUs, by position in the machine.
        nvlink_set: The largest set of two or more GPUs that a pod with ``policy: nvlink`` would get now. None if there
            is no such set, or if the machine has more GPUs than the allocator supports.
        lost: GPUs that were on the node and have disappeared, by number; those without a number last.
    """

    name: str
    machine: Machine
    groups: Groups
    gpus: tuple[GpuView, ...]
    nvlink_set: Choice | None = None
    lost: tuple[LostView, ...] = ()

    @property
    def count(self) -> int:
        """Return the number of the node's GPUs with the lost ones, as ``topo --cluster`` and ``health`` count them."""
        return len(self.gpus) + len(self.lost)

    @property
    def users(self) -> list[tuple[Holder, ...]]:
        """Return for each GPU the claims that use it; lost GPUs come last.

        Claims that only monitor a GPU on the node are left out.
        """
        return [*(view.taken_by for view in self.gpus), *(gpu.holders for gpu in self.lost)]

    @property
    def free(self) -> list[int]:
        """Return the numbers of the node's free GPUs."""
        return [view.gpu.index for view in self.gpus if view.state == "free"]

    @property
    def unhealthy(self) -> int:
        """Return how many of the node's GPUs are unhealthy or lost."""
        return sum(view.is_unhealthy for view in self.gpus) + len(self.lost)


class _Node(msgspec.Struct):
    """The data from the ResourceSlices of one node, before its users are added.

    Attributes:
        name: The node's name.
        machine: Its machine.
        driver: The driver that allocates its devices.
        devices: The devices by our device names. Claims are pinned to these names.
        parts: The devices that are fractions of a GPU, by the GPU's device name and their own name.
        called: Our device name for each device to which the allocating driver gives another name.
        lost: The GPUs that the node lost.
        ruled: The DeviceTaintRules that taint a device, in words, by our name of the device.
    """

    name: str
    machine: Machine
    driver: str
    devices: dict[str, Device]
    parts: dict[str, dict[str, Device]]
    called: dict[str, str]
    lost: tuple[LostGpu, ...]
    ruled: Mapping[str, str]

    @property
    def existing(self) -> set[str]:
        """Return our names of the devices in the node's slices and of the GPUs of its machine."""
        return {*self.devices, *(_name(gpu.uuid) for gpu in self.machine.gpus)}

    def is_shut(self, name: str) -> bool:
        """Return whether a taint or a DeviceTaintRule keeps a device from new claims."""
        return self.devices[name].blocked or name in self.ruled


class NotOffered(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs without a fault that new pods do not get.

    Attributes:
        closed: Why a node accepts no new pods, by node name.
        reserved: The workload of each reserved GPU, by node name and device name.
        taint_rules: The administrators' DeviceTaintRules; None for none, or if they are not known.
    """

    closed: Mapping[str, str] = {}
    reserved: Mapping[str, Mapping[str, str]] = {}
    taint_rules: TaintRules | None = None


_Holders = Mapping[str, Sequence[Holder]]  # by our name of a node's device


def views(
    pieces: Iterable[ResourceSlice],
    claims: Iterable[Claim],
    *,
    only: Iterable[str] = (),
    not_offered: NotOffered = NotOffered(),  # noqa: B008 - it is frozen
) -> tuple[list[NodeView], list[str]]:
    """Return the views of nodes in natural order, and warnings about data that is unreadable or looks wrong.

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
    claims = list(claims)
    held = held_by(claims, shared_devices)  # by node: driver, device and holder
    nodes = []
    for name in sorted(names_to_show & our_slices.keys(), key=natural):
        node = _node(name, our_slices[name], other_slices.get(name, ()), not_offered.taint_rules, warnings)
        if node is not None:
            holders = _holders(node, held)
            lost = _lost(node, holders, claims)
            nodes.append(msgspec.structs.replace(_view(node, holders, not_offered), lost=lost))
            warnings += _doubts(node, holders)
    return nodes, warnings


def _node(
    name: str,
    our_slices: Sequence[ResourceSlice],
    other_slices: Sequence[ResourceSlice],
    taint_rules: TaintRules | None,
    warnings: list[str],
) -> _Node | None:
    """Return the machine and the devices of a node from its slices.

    Args:
        name: The node's name.
        our_slices: The node's slices of this driver.
        other_slices: The node's slices of other GPU drivers.
        taint_rules: The DeviceTaintRules, if they are known.
        warnings: The list to which warnings are added.

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
            cause = f"its slice has no annotation {names.MACHINE}. Check the version of its node agent"
        except TopologyError as error:
            cause = f"annotation {names.MACHINE}: {error}"
    if machine is None:
        warnings.append(f"node {name} is left out: {cause}")
        return None

    # 3. The devices. Another driver calls a GPU otherwise than we do: ``our_names`` has our name of its whole GPUs.
    #    ``gpu_of_device`` has our name of the GPU that a device is or is a part of.
    devices = {device.name: device for piece in allocated for device in piece.spec.devices}
    our_names: dict[str, str] = {}
    if is_other_allocating:
        gpu_of_device = gpu_names({name: identity(device, ledger) for name, device in devices.items()}, machine)
        our_names = {name: gpu for name, gpu in gpu_of_device.items() if is_gpu(devices[name], ledger)}
    else:
        gpu_of_device = {name: _name(uuid) for name, device in devices.items() if (uuid := device.text("parentUUID"))}
    parts: dict[str, dict[str, Device]] = {}  # MIG slices that are devices, by our name of their GPU
    for device_name, gpu in gpu_of_device.items():
        if device_name not in our_names:
            parts.setdefault(gpu, {})[device_name] = devices[device_name]
    renamed = {our_names.get(device_name, device_name): device for device_name, device in devices.items()}
    ruled = {
        our_names.get(device_name, device_name): ", ".join(
            f"{rule.taint} by DeviceTaintRule {rule.metadata.name}" for rule in rules
        )
        for device_name in devices
        if taint_rules is not None and (rules := taint_rules.over(ledger.driver, name, device_name))
    }
    return _Node(name, machine, ledger.driver, renamed, parts, our_names, lost_gpus.read(current, machine), ruled)


def _whose(theirs: Sequence[ResourceSlice]) -> Ledger:
    """Return the other driver that has devices in a node's slices.

    If several have, NVIDIA's driver is returned, and also if none has. ``theirs`` are the slices of other drivers.
    """
    having = {piece.spec.driver for piece in theirs if piece.spec.devices}
    return next((one for one in OTHERS if one.driver in having), OTHERS[0])


def _current(name: str, pool: Sequence[ResourceSlice], warnings: list[str]) -> list[ResourceSlice]:
    """Return the slices of a pool's newest complete generation; empty if no generation is complete.

    If the newest generation is not complete, a warning is added to ``warnings``. ``name`` is the node's.
    """
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
    """Return the users of each device of a node: allocations, tentative placements, then monitoring.

    ``held`` has the users of all nodes' devices.
    """
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
        name = _name(gpu.uuid)
        parts = node.parts.get(name, {})
        who = list(holders.get(name, ()))
        for part, device in parts.items():  # who has a MIG slice that is a device, has that slice
            words = slice_words(device)
            who += [msgspec.structs.replace(holder, part=holder.part or words) for holder in holders.get(part, ())]
        devices = [name] if name in node.devices else list(parts)
        taints = tuple(dict.fromkeys(taint for device in devices for taint in node.devices[device].taints))
        blocked = _blocked(gpu, node, devices[:1], parts) or ("" if who else too_large)
        only = name not in node.devices and bool(parts)
        if name in node.devices and (divided := parts_of(node.devices[name])) is not None:
            only = divided.only
        gpus.append(
            GpuView(
                gpu=gpu, holders=tuple(who), blocked=blocked, closed=closed, reserved=reserved.get(name, ""),
                fractions_only=only, taints=taints,
                is_shut=bool(devices) and all(map(node.is_shut, devices)),
            )
        )  # fmt: skip
    view = NodeView(name=node.name, machine=node.machine, groups=group(node.machine), gpus=tuple(gpus))
    return msgspec.structs.replace(view, nvlink_set=_nvlink_set(node.machine, view.free))


def _blocked(gpu: Gpu, node: _Node, shown: Sequence[str], parts: Mapping[str, Device]) -> str:
    """Return why the scheduler cannot allocate a GPU whole; empty if it can.

    Args:
        gpu: The GPU.
        node: Its node.
        shown: The name of its device; if each MIG slice is a device instead, the name of the first slice. Empty if it
            has no device.
        parts: Its MIG slices that are devices, by name.
    """
    if gpu.mig or (gpu.mig is not None and not shown):
        there = ", ".join(slice_words(part) + " (tainted)" * node.is_shut(name) for name, part in parts.items())
        return f"{_IN_MIG_MODE}, with {there}" if there else _IN_MIG_MODE
    if not shown:
        return _MISSING
    taints = [str(taint) for taint in node.devices[shown[0]].taints if taint.blocks]
    taints += [node.ruled[shown[0]]] if shown[0] in node.ruled else []
    return f"tainted {', '.join(taints)}" if taints else ""


def _nvlink_set(machine: Machine, free: Sequence[int]) -> Choice | None:
    """Return the largest set of GPUs that a pod with ``policy: nvlink`` would get now.

    None if the pod would get no set. ``free`` are the free GPUs of the machine. The allocator itself chooses the set,
    so the result is exactly the set that a pod gets.
    """
    if len(machine.gpus) > MAX_GPUS:
        return None
    for count in range(len(free), 1, -1):
        try:
            return choose(machine, free, Whole(containers=(count,), required=(Constraint.NVLINK,)))
        except NoPlaceError:
            continue
    return None


def _lost(node: _Node, holders: _Holders, claims: Iterable[Claim]) -> tuple[LostView, ...]:
    """Return the GPUs that a node lost.

    These are the GPUs that its agent reports as lost, and GPUs that only a claim still has.

    Args:
        node: The node.
        holders: The users of each device.
        claims: The claims of all namespaces. The controller's choice in a claim has the numbers of its GPUs.
    """
    users: dict[str, list[Holder]] = {}  # of each device that is not there any more, by our name of its GPU
    for device in holders.keys() - node.existing:
        using = (holder for holder in holders[device] if holder.hold is not Hold.ADMIN)
        users.setdefault(gpu_of_placement(device) or device, []).extend(using)

    known = [
        LostView(index=gpu.index, pci=gpu.pci, uuid=gpu.uuid, holders=tuple(users.pop(_name(gpu.uuid), ())))
        for gpu in node.lost
    ]
    # A device of another driver is called by a number, which is another GPU's once a GPU is lost.
    allocated = {name for name, using in users.items() if any(holder.hold is Hold.ALLOCATED for holder in using)}
    if not allocated or node.driver != OURS.driver:
        return tuple(known)
    chosen = [pin for claim in claims if (pin := pins.pin(claim)) is not None and pin.choice.node == node.name]
    numbers = {_name(uuid): (number, uuid) for pin in chosen for number, uuid in pin.numbers().items()}
    unreported = [
        LostView(index=number, uuid=uuid, holders=tuple(users[name]))
        for name in sorted(allocated)
        for number, uuid in [numbers.get(name, (None, name))]
    ]
    return tuple(sorted([*known, *unreported], key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid)))


def _doubts(node: _Node, held: _Holders) -> Iterator[str]:
    """Yield warnings about devices in use that look wrong.

    A device is allocated to several claims, at least one of them without a share. Or a claim uses a device that the
    other allocating driver does not publish. ``held`` has the users of each device.
    """
    for device, holders in sorted(held.items(), key=lambda item: item[0]):
        claims = [f"{h.namespace}/{h.claim}" for h in holders if h.hold is Hold.ALLOCATED]
        whole = [h for h in holders if h.hold is Hold.ALLOCATED and not h.share]
        if device not in node.existing:
            if claims and node.driver != OURS.driver:
                yield (
                    f"node {node.name}: {device} is used by claim {', '.join(claims)}, but {node.driver} does not "
                    "publish it. Look at that driver's pod on the node"
                )
        elif whole and len(claims) > 1:
            yield f"node {node.name}: {device} is allocated to several claims: {', '.join(claims)}"
