"""What of a node's GPUs is left beside what claims hold of them, as the allocator is told it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final, NamedTuple

import msgspec

from dradriver.allocator import Amount, MigPart, Offer, SharePart
from dradriver.allocator.parts.offers import WHOLE, ShareRule
from dradriver.allocator.request import Part
from dradriver.api.claims.pins import ALL_CORES, Key, MigSlice, Usage
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus.pools import Pool

_ANY_SIZE: Final = ShareRule()


class Remaining(NamedTuple):
    """What is left of a node's GPUs, by the machine's numbers.

    Attributes:
        free: Usable GPUs that nobody has anything of.
        offer: Which may be had in parts, without their tenants.
        parts: The parts that are on them.
        tenants: The namespaces that have parts of those that are of one namespace at a time.
    """

    free: list[int]
    offer: Offer
    parts: dict[int, list[Part]]
    tenants: dict[int, set[str]]

    def among(self, numbers: Set[int]) -> Remaining:
        """Return what is left of a node's GPUs as if only these GPUs were offered."""
        offer = self.offer
        offer = msgspec.structs.replace(offer, shared=offer.shared & numbers, sliced=offer.sliced & numbers)
        return self._replace(free=[number for number in self.free if number in numbers], offer=offer)


def remaining(pool: Pool, held: Mapping[str, Mapping[Key, Usage]]) -> Remaining:
    """Return what remains of a node's GPUs beyond what claims hold.

    On a GPU that somebody has whole, or of which nobody knows what is taken, there are no parts: it is not free
    either, so nothing more is given of it.

    Args:
        pool: The node's.
        held: What claims hold of each GPU, by its device's name.
    """
    free = [number for number, (device, _) in pool.devices.items() if device in pool.usable and not held[device]]
    if not pool.parts:
        return Remaining(free, WHOLE, {}, {})
    shared, sliced, only = set(), set(), set()
    rules: list[tuple[int, ShareRule]] = []
    memory = {gpu.index: gpu.memory_mib for gpu in pool.machine.gpus}
    parts: dict[int, list[Part]] = {}
    tenants: dict[int, set[str]] = {}
    for number, (device, _) in pool.devices.items():
        how = pool.parts.get(device)
        if how is None or device not in pool.usable:
            continue
        if how.only:
            only.add(number)
        if pool.is_exclusive(device):
            tenants[number] = {namespace for namespace, _ in held[device]}
        if how.sliced:
            sliced.add(number)
        if how.shared:
            shared.add(number)
        rule = ShareRule(how.memory_mib if how.memory_mib != memory.get(number) else 0, how.equal)
        if how.shared and rule != _ANY_SIZE:
            rules.append((number, rule))
        if None not in held[device].values():
            taken = [part for load in held[device].values() for part in load or ()]
            blocked = (part for name, part in pool.placed.get(device, {}).items() if name not in pool.usable)
            taken += [part for part in blocked if part not in taken]
            if taken:
                parts[number] = [part_on(number, part) for part in taken]
    offer = Offer(
        shared=frozenset(shared),
        sliced=frozenset(sliced),
        parts_only=frozenset(only),
        rules=tuple(rules),
    )
    return Remaining(free, offer, parts, tenants)


def fits_beside(pool: Pool | None, device: str, taken: Usage, loads: Mapping[Key, Usage], namespace: str) -> bool:
    """Return whether a claim of a namespace fits into what remains of a device.

    Args:
        pool: The node's; None while it is not complete.
        device: The device's name.
        taken: What the claim is to have of it.
        loads: What each of the others holds of it; at least one.
        namespace: The claim's.
    """
    if taken is None or None in loads.values():
        return False
    gpus = () if pool is None else pool.machine.gpus
    gpu = next((gpu for gpu in gpus if resource_slices.device_name(gpu.uuid) == device), None)
    if pool is None or gpu is None:
        return False  # nobody knows how much of it there is
    parts = pool.parts.get(device)
    if pool.is_exclusive(device) and any(own != namespace for own, _ in loads):
        return False
    every = [*taken, *(part for load in loads.values() if load is not None for part in load)]
    amounts = [part for part in every if isinstance(part, Amount)]
    spans = [range(part.start, part.start + part.size) for part in every if isinstance(part, MigSlice)]
    return (
        not (amounts and spans)
        and sum(amount.cores for amount in amounts) <= ALL_CORES
        and sum(amount.memory_mib for amount in amounts) <= ((parts and parts.memory_mib) or gpu.memory_mib)
        and len({number for span in spans for number in span}) == sum(map(len, spans))
    )


def part_on(number: int, one: Amount | MigSlice) -> Part:
    """Return what is taken of a GPU as a part of the GPU of this number."""
    if isinstance(one, Amount):
        return SharePart(gpu=number, amount=one)
    return MigPart(gpu=number, profile=one.profile, start=one.start, size=one.size)
