"""Computes what remains of a node's GPUs next to the allocations of claims.

The result has the form that the allocator takes.

A *pool* is all ResourceSlices of a node, and has the node's name. A *fraction* is a share of a GPU or a MIG slice.
"""

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
    """The GPUs and fractions that are left of a node, by the machine's GPU numbers.

    Attributes:
        free: Usable GPUs without any allocation.
        offer: GPUs that can be divided into shares or MIG slices. Its field ``Offer.tenants`` is empty; the attribute
            ``tenants`` here is used instead.
        parts: Allocated shares and MIG slices of each divided GPU.
        tenants: The namespaces with fractions of a GPU, for GPUs that are divided for one namespace at a time.
    """

    free: list[int]
    offer: Offer
    parts: dict[int, list[Part]]
    tenants: dict[int, set[str]]

    def among(self, numbers: Set[int]) -> Remaining:
        """Return what remains of the node's GPUs if only those with these numbers were offered."""
        offer = self.offer
        offer = msgspec.structs.replace(offer, shared=offer.shared & numbers, sliced=offer.sliced & numbers)
        return self._replace(free=[number for number in self.free if number in numbers], offer=offer)


def remaining(pool: Pool, held: Mapping[str, Mapping[Key, Usage]]) -> Remaining:
    """Return what remains of a node's GPUs next to the allocations of claims.

    A GPU that is allocated whole, or with an unknown size, is neither free nor divided in the result. So the allocator
    does not allocate it.

    Args:
        pool: The node's pool of devices.
        held: The allocations of each GPU, by device name and claim; None is the whole GPU or an unknown amount.
    """
    free = [number for number, (device, _) in pool.devices.items() if device in pool.usable and not held[device]]
    if not pool.parts:
        return Remaining(free, WHOLE, {}, {})
    shared, sliced, parts_only = set(), set(), set()
    rules: list[tuple[int, ShareRule]] = []  # of GPUs that cannot be shared in any sizes of all their memory
    memory = {gpu.index: gpu.memory_mib for gpu in pool.machine.gpus}
    allocated_parts: dict[int, list[Part]] = {}
    tenants: dict[int, set[str]] = {}
    for number, (device, _) in pool.devices.items():
        division = pool.parts.get(device)
        if division is None or device not in pool.usable:
            continue
        if division.only:  # never allocated as a whole
            parts_only.add(number)
        if pool.is_exclusive(device):
            tenants[number] = {namespace for namespace, _ in held[device]}
        if division.sliced:
            sliced.add(number)
        if division.shared:
            shared.add(number)
            rule = ShareRule(division.memory_mib if division.memory_mib != memory.get(number) else 0, division.equal)
            if rule != _ANY_SIZE:
                rules.append((number, rule))
        if None not in held[device].values():
            allocated = [fraction for usage in held[device].values() for fraction in usage or ()]
            # ``pool.placed``: MIG slices of the GPU that are devices of their own. The place of an unusable one
            # (tainted, for example) must stay empty: count it as allocated.
            slices = pool.placed.get(device, {})
            unusable_slices = [slices[name] for name in slices if name not in pool.usable]
            allocated += [fraction for fraction in unusable_slices if fraction not in allocated]
            if allocated:
                allocated_parts[number] = [part_on(number, fraction) for fraction in allocated]
    offer = Offer(
        shared=frozenset(shared),
        sliced=frozenset(sliced),
        parts_only=frozenset(parts_only),
        rules=tuple(rules),
    )
    return Remaining(free, offer, allocated_parts, tenants)


def fits_beside(
    pool: Pool | None, device: str, requested: Usage, other_usage: Mapping[Key, Usage], namespace: str
) -> bool:
    """Return whether a claim fits on a GPU next to the claims that use it already.

    Args:
        pool: The node's pool of devices; None while its slices are not complete.
        device: The name of the GPU's device.
        requested: The fractions that the claim needs; None for the whole GPU.
        other_usage: The fractions of each other claim on the GPU; at least one claim.
        namespace: The namespace of the claim. Some GPUs are divided for one namespace at a time.
    """
    if requested is None or None in other_usage.values():
        return False
    gpus = () if pool is None else pool.machine.gpus
    gpu = next((gpu for gpu in gpus if resource_slices.device_name(gpu.uuid) == device), None)
    if pool is None or gpu is None:
        return False  # the size of the GPU is not known
    if pool.is_exclusive(device) and any(other_namespace != namespace for other_namespace, _ in other_usage):
        return False
    fractions = [*requested, *(fraction for usage in other_usage.values() if usage is not None for fraction in usage)]
    shares = [fraction for fraction in fractions if isinstance(fraction, Amount)]
    mig_slices = [fraction for fraction in fractions if isinstance(fraction, MigSlice)]
    mig_spans = [range(mig_slice.start, mig_slice.start + mig_slice.size) for mig_slice in mig_slices]
    if shares and mig_spans:
        return False  # a GPU in MIG mode has no shares
    # Shares can be limited to less than the memory of the GPU; 0 is no limit.
    division = pool.parts.get(device)
    memory_mib = (division and division.memory_mib) or gpu.memory_mib
    memory_slices = {number for span in mig_spans for number in span}
    return (
        sum(share.cores for share in shares) <= ALL_CORES
        and sum(share.memory_mib for share in shares) <= memory_mib
        and len(memory_slices) == sum(map(len, mig_spans))  # no two MIG slices overlap
    )


def part_on(number: int, one: Amount | MigSlice) -> Part:
    """Return a claim's fraction of a GPU in the allocator's form.

    ``number`` is the GPU's number on its machine; ``one`` is the fraction: a share's amount or a MIG slice.
    """
    if isinstance(one, Amount):
        return SharePart(gpu=number, amount=one)
    return MigPart(gpu=number, profile=one.profile, start=one.start, size=one.size)
