"""Reads which devices a claim has: the allocated devices, and the devices that the claim is pinned to.

A *pin* is the controller's choice of devices in the spec of a claim. A claim is pinned if its selectors match only the
devices that the controller chose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Amount, Choice, MigPart, Part, PartChoice, SharePart
from dradriver.api.base import names, quantity
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.dra_objects import AllocationResult, DeviceConfig, ResourceClaim
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims import claim_builder, opaque_config, result_annotations
from dradriver.api.slices import resource_slices
from dradriver.api.vocabulary import nic_requests
from dradriver.api.vocabulary.values import NCCL_AUTO
from dradriver.topology.identifiers import is_mig_profile

Key = tuple[str, str]
"""Namespace and name of an object."""

Device = tuple[str, str]
"""Pool and name of a device. The name is the GPU's identity, so it outlives the GPU's absence."""


ALL_CORES: Final = 100
_MIB: Final = 2**20
_MOST_START: Final = 63  # nobody counts in bits whatever number stands in a claim


class MigSlice(msgspec.Struct, frozen=True):
    """One MIG slice of a GPU.

    Attributes:
        profile: The profile's name.
        start: Its first memory slice.
        size: The number of its memory slices.
        compute: The number of its compute slices; 0 if the profile's usual number applies.
    """

    profile: str
    start: int
    size: int
    compute: int = 0


Usage = tuple[Amount | MigSlice, ...] | None
"""What is taken of a device: its parts, or None for all of it, and where nobody knows which part it is."""


class _Cel(msgspec.Struct, frozen=True, gc=False):
    expression: str = ""


class _Selector(msgspec.Struct, frozen=True, gc=False):
    cel: _Cel = _Cel()


class _Capacity(msgspec.Struct, frozen=True, gc=False):
    requests: dict[str, str] = {}


class _Exactly(msgspec.Struct, rename="camel", frozen=True, gc=False):
    device_class_name: str = ""
    count: int = 1
    selectors: list[_Selector] = []
    capacity: _Capacity = _Capacity()


class _Request(msgspec.Struct, rename="camel", frozen=True, gc=False):
    name: str = ""
    exactly: _Exactly | None = None


class _Devices(msgspec.Struct, rename="camel", frozen=True, gc=False):
    requests: list[_Request] = []
    config: list[DeviceConfig] = []


class _Spec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    devices: _Devices = _Devices()


class Claim(ResourceClaim, frozen=True):
    """A claim with the part of its spec that pins it to GPUs.

    The controller writes the chosen GPUs into the claim's annotation ``choice``. This annotation alone does not prove
    which GPUs the claim has, for two reasons. The annotation has GPU numbers of the machine, which shift when the
    machine loses a GPU. And users can change annotations, while a claim's spec is immutable.
    """

    spec: _Spec = _Spec()

    @property
    def key(self) -> Key:
        """Return the namespace and name of a claim."""
        return self.metadata.namespace, self.metadata.name


class Pin(msgspec.Struct, frozen=True):
    """The GPUs and NICs that a claim of this driver is pinned to.

    Attributes:
        choice: The chosen GPUs or fractions, with the GPU numbers that the machine had when they were chosen.
        uuids: The uuids of the chosen GPUs by the name of the claim's request, in the order of ``choice.containers``.
        placed: Uuids of the GPUs whose MIG slices are separate devices, pinned by profile and start.
        nccl: The value of the pod's annotation ``nccl``, such as ``auto`` or ``off``.
        nics: PCI addresses of the pinned NICs, by the name of the claim's request.
    """

    choice: Choice | PartChoice
    uuids: dict[str, tuple[str, ...]]
    placed: frozenset[str] = frozenset()
    nccl: str = NCCL_AUTO
    nics: dict[str, tuple[str, ...]] = {}

    @property
    def devices(self) -> frozenset[Device]:
        """Return the devices (pool and name) of the GPUs to which the claim is pinned."""
        return frozenset(self.taken)

    @property
    def taken(self) -> dict[Device, Usage]:
        """Return how much of each pinned GPU the claim uses: its fractions, or None for the whole GPU."""
        return taken_of(self.choice, self.uuids)

    @property
    def apart(self) -> frozenset[Device]:
        """Return the pinned GPUs for which each possible MIG slice is published as a device of its own."""
        return frozenset((self.choice.node, resource_slices.device_name(uuid)) for uuid in self.placed)

    @property
    def texts(self) -> dict[str, str | None]:
        """Return the annotations that show the pinned GPUs on the pod; None removes an annotation."""
        return result_annotations.written(self.choice, self.numbers())

    def numbers(self) -> dict[int, str]:
        """Return the uuid of each pinned GPU, by the number that the GPU had on its machine."""
        if isinstance(self.choice, PartChoice):
            parts = claim_builder.parts_of(self.choice, self.uuids)
            return {part.gpu: self.uuids[request][0] for request, part in parts.items()}
        return {
            number: uuid
            for numbers, uuids in zip(self.choice.containers, self.uuids.values(), strict=True)
            for number, uuid in zip(numbers, uuids, strict=True)
        }


def taken_of(choice: Choice | PartChoice, uuids: Mapping[str, tuple[str, ...]]) -> dict[Device, Usage]:
    """Return how much of each GPU a choice uses: its fractions, or None for the whole GPU.

    Args:
        choice: The chosen GPUs or fractions.
        uuids: The uuids of the chosen GPUs, by the name of the claim's request.
    """
    if isinstance(choice, Choice):
        return {(choice.node, resource_slices.device_name(uuid)): None for each in uuids.values() for uuid in each}
    taken: dict[Device, tuple[Amount | MigSlice, ...]] = {}
    for request, part in claim_builder.parts_of(choice, uuids).items():
        device = choice.node, resource_slices.device_name(uuids[request][0])
        piece = part.amount if isinstance(part, SharePart) else MigSlice(part.profile, part.start, part.size)
        taken[device] = (*taken.get(device, ()), piece)
    return dict(taken)


def pin(claim: Claim) -> Pin | None:
    """Return the devices to which a claim of this driver is pinned; None without a valid pin.

    A pin is the controller's choice of GPUs and NICs in the claim's spec. The annotation with the choice must agree
    with the claim's configuration and requests. Otherwise the pin is not valid, because everyone who may write the
    claim can change its annotations.
    """
    # The choice has the GPUs' numbers on their machine, the configuration their uuids by request.
    try:
        choice = claim_builder.read_choice(claim)
        our_configs = [
            entry for entry in claim.spec.devices.config if entry.opaque and entry.opaque.driver == names.DRIVER
        ]
        if choice is None or len(our_configs) != 1 or our_configs[0].opaque is None:
            return None
        claim_config = opaque_config.read(our_configs[0].opaque.parameters)

        # The scheduler gives only what the requests ask for, even if the configuration names more.
        gpu_requests = {
            request.name: request.exactly
            for request in claim.spec.devices.requests
            if request.exactly and _is_of_gpus(request.exactly.device_class_name)
        }
        nic_candidates = {
            request.name: request.exactly
            for request in claim.spec.devices.requests
            if request.exactly and request.exactly.selectors and request.name not in gpu_requests
        }
        uuids = {name: tuple(claim_config.order.get(name, ())) for name in gpu_requests}

        # 1. The configuration names as many GPUs for each request as the request asks for.
        counts = [len(uuids_of_request) for uuids_of_request in uuids.values()]
        if (
            len(claim_config.order) != len(gpu_requests)
            or [exactly.count for exactly in gpu_requests.values()] != counts
        ):
            return None

        # 2. The choice in the annotation fits the requests: the same numbers of GPUs, or the same fractions.
        placed_uuids: frozenset[str] = frozenset()
        if isinstance(choice, Choice):
            # A choice lists the same GPUs three times: by container, ascending, and as a ring.
            numbers = sorted(number for part in choice.containers for number in part)
            is_consistent = counts == [len(part) for part in choice.containers] and (
                numbers == sorted(choice.gpus) == sorted(choice.ring)
            )
        else:
            parts = claim_builder.parts_of(choice, uuids)
            is_consistent = all(len(uuids_of_request) == 1 for uuids_of_request in uuids.values()) and all(
                _is_request_for(part, gpu_requests[name], claim_config.mig.get(name), uuids[name][0])
                for name, part in parts.items()
            )
            # A MIG slice without an entry in the configuration is a device of its own.
            placed_uuids = frozenset(
                uuids[name][0]
                for name, part in parts.items()
                if isinstance(part, MigPart) and name not in claim_config.mig
            )

    # The annotation can hold any text, nested as deep as 256 KiB allow.
    except (WordError, ValueError, RecursionError):
        return None
    if not is_consistent:
        return None
    return Pin(
        choice=choice,
        uuids=uuids,
        placed=placed_uuids,
        nccl=claim_config.nccl,
        # The configuration names the requests that the controller chose for. Other selectors are their author's.
        nics=_nics(nic_candidates, our_configs[0].requests) if nic_candidates else {},
    )


_OF_GPUS: Final = frozenset((*OURS.vendor_of, names.SHARE_CLASS, names.MIG_CLASS))


def _is_of_gpus(device_class: str) -> bool:
    """Return whether a DeviceClass is one of the allocating driver's GPU classes.

    The name is compared as a whole: names of NIC classes can have the same ending.
    """
    return device_class in _OF_GPUS or device_class in current_ledger().vendor_of


def _nics(requests: Mapping[str, _Exactly], chosen_for: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the PCI addresses of the NICs that requests are pinned to, by the request's name.

    A request is pinned if its first selector names as many addresses as the request's count. The selector of a claim's
    author can have the same form. So only the requests in ``chosen_for`` are read. If this is empty, an older release
    wrote the claim, and all requests are read.

    Args:
        requests: The claim's requests for NICs, by name.
        chosen_for: The names of the requests for which the driver chose NICs, from the claim's configuration.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, asked in requests.items():
        if chosen_for and name not in chosen_for:
            continue
        addresses = nic_requests.addresses(asked.selectors[0].cel.expression)
        if addresses and len(addresses) == asked.count:
            found[name] = addresses
    return found


def _is_request_for(part: Part, asked: _Exactly, mig: opaque_config.Mig | None, uuid: str) -> bool:
    """Return whether a request in a claim's spec is for the share or MIG slice ``part``.

    ``part`` comes from the claim's annotation, which users can change. So it is compared with the spec, which is
    immutable.

    Args:
        part: The share or MIG slice in the annotation.
        asked: The request in the spec.
        mig: The request's MIG instance in the claim's configuration; None without one.
        uuid: The GPU's uuid.
    """
    requested = asked.capacity.requests
    if isinstance(part, SharePart):
        return mig is None and _amount(requested) == part.amount
    size = quantity.whole(requested.get(names.CAPACITY_MEMORY_SLICES, "0"))
    if not (0 < size == part.size <= _MOST_START + 1 and 0 <= part.start <= _MOST_START):
        return False
    if mig is None:
        return [selector.cel.expression for selector in asked.selectors] == [
            claim_builder.placement_selector(uuid, part)
        ]
    return (mig.profile, mig.starts) == (part.profile, {uuid: part.start})


def _amount(capacities: Mapping[str, str]) -> Amount:
    """Return an amount of compute and memory from capacities; a missing capacity counts as 0.

    Raises:
        WordError: A text is not a quantity.
    """
    cores = quantity.whole(capacities.get(names.CAPACITY_CORES, "0"))
    return Amount(cores, -(-quantity.whole(capacities.get(names.CAPACITY_MEMORY, "0")) // _MIB))


def allocated(claim: Claim) -> dict[Device, Usage]:
    """Return how much of each device the scheduler allocated to a claim; None is a whole GPU.

    The claim need not have a pin. Devices of other drivers, gang barrier devices and devices for monitoring (admin
    access) are left out.

    The scheduler does not know at which memory slice a MIG slice starts. The start is read from the pin. Without a pin,
    it is read from the status that the node agent writes when it prepares the claim. Until then the claim counts as
    using the whole GPU.
    """
    if claim.status.allocation is None:
        return {}
    driver = current_ledger().driver
    usage_of_device: dict[Device, Usage] = {}
    pinned: dict[Device, Usage] | None = None
    for result in claim.status.allocation.devices.results:
        if result.driver != driver or result.admin_access or names.is_seat(result.driver, result.pool):
            continue
        device = result.pool, result.device
        if names.CAPACITY_MEMORY_SLICES in result.consumed_capacity:
            if pinned is None:  # read once, because it takes time
                pinned = found_pin.taken if (found_pin := pin(claim)) is not None else {}
            if pinned:
                usage_of_device[device] = pinned.get(device)
                continue
        part = part_of(claim, result)
        parts_so_far = usage_of_device.get(device, ())
        usage_of_device[device] = None if part is None or parts_so_far is None else (*parts_so_far, part)
    return usage_of_device


def part_of(claim: ResourceClaim, result: AllocationResult) -> Amount | MigSlice | None:
    """Return the fraction in ``result``, one allocated device; None for a whole GPU.

    Also None if the fraction is not known. The start of a MIG slice is in the claim's status.
    """
    if names.CAPACITY_MEMORY_SLICES in result.consumed_capacity:
        return _slice_of(claim, result)
    return _share_of(result.consumed_capacity)


class _Told(msgspec.Struct, frozen=True, gc=False):
    """The MIG slice in a device's status of a claim, which the node agent writes (``node.claims.status``)."""

    type: str = ""
    profile: str = ""
    placement: int = -1


_TOLD: Final = msgspec.json.Decoder(_Told)


def _slice_of(claim: ResourceClaim, result: AllocationResult) -> MigSlice | None:
    """Return the MIG slice of an allocation result from the claim's status; None if unknown.

    Unknown means that the node agent has not written the status, or that the status is not valid. The size of the slice
    is the number of memory slices that the scheduler counted. The caller must check that the profile has this size,
    because only the caller knows the GPU's profiles.
    """
    device_key = result.driver, result.pool, result.device, result.share_id
    for status in claim.status.devices:
        if (status.driver, status.pool, status.device, status.share_id) != device_key:
            continue
        try:
            prepared = _TOLD.decode(status.data)
            size, compute = (
                quantity.whole(result.consumed_capacity.get(name, "0"))
                for name in (names.CAPACITY_MEMORY_SLICES, names.CAPACITY_COMPUTE_SLICES)
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, WordError):
            return None
        is_valid = (
            prepared.type == "mig" and is_mig_profile(prepared.profile) and 0 <= prepared.placement <= _MOST_START
        )
        return (
            MigSlice(prepared.profile, prepared.placement, size, compute)
            if is_valid and min(size, compute) > 0
            else None
        )
    return None


def _share_of(consumed: Mapping[str, str]) -> Amount | None:
    """Return the share of a GPU in the consumed capacities of an allocation result.

    None for a whole GPU or an invalid share.
    """
    if not consumed:
        return None  # as of most: a cluster has thousands of whole GPUs
    try:
        amount = _amount(consumed)
    except WordError:
        return None
    return amount if 0 < amount.cores < ALL_CORES else None


def owners(claim: Claim) -> tuple[tuple[str, str], ...]:
    """Return the name and uid of each pod that a claim belongs to, from its owner references.

    For a claim of one pod, this is its controlling owner. For a shared claim, these are all pods that share it.
    """
    pods = [owner for owner in claim.metadata.owner_references if owner.kind == "Pod"]
    shared = names.SET in claim.metadata.annotations
    return tuple((owner.name, owner.uid) for owner in pods if owner.controller or shared)


def claim_key(pod: Pod) -> Key | None:
    """Return namespace and name of the claim that the webhook wrote into a pod; None without one.

    The claim may not exist yet.
    """
    return None if pod.claim_name is None else (pod.metadata.namespace, pod.claim_name)


def is_set(claim: Key) -> bool:
    """Return whether a claim is shared by several pods, by the form of its name.

    Users name shared claims. The driver generates all other names, with the prefix ``names.CLAIM_PREFIX``.

    Args:
        claim: The namespace and name of the claim.
    """
    return not claim[1].startswith(names.CLAIM_PREFIX)


KEEP: Final = ("CUDA_", "NCCL_", "NVIDIA_")
"""What the node agent's edits can touch: other variables of the author's need no protection."""


def kept_env(pod: Pod, containers: frozenset[str]) -> list[str]:
    """Return the environment variables that the pod's author set and that the driver must not replace.

    Only variables of these containers count, and only names with a prefix in the constant ``KEEP``: the node agent can
    set such variables by CDI.
    """
    spec = (*pod.spec.init_containers, *pod.spec.containers)
    return sorted({e.name for c in spec if c.name in containers for e in c.env if e.name.startswith(KEEP)})
