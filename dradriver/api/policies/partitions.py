"""Which GPUs the workloads of each tenant may use, by the section ``tenants``. Pure functions.

A *partition* has the GPUs that the workloads of a tenant may use. If it is *exclusive*, no other tenant may use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Final, NamedTuple

from dradriver.api.policies.fields import Gpus
from dradriver.api.policies.gpu_modes import fits, on_node
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.topology.machine import Gpu

OTHERS: Final = ""
"""Whoever has no partition."""


class Division(NamedTuple):
    """The GPUs of a node, divided among tenants.

    Attributes:
        open: The numbers of the GPUs that each tenant with a partition may use, by tenant. If such a tenant is missing,
            it may use no GPU of the node. The entry ``OTHERS`` is for tenants without a partition: it has all GPUs that
            are not exclusive to a tenant.
        clashes: Pairs of tenants whose exclusive partitions select the same GPUs. The first tenant of a pair gets them.
    """

    open: dict[str, frozenset[int]]
    clashes: frozenset[tuple[str, str]]


def bounds(tenants: Mapping[str, Tenant]) -> dict[str, tuple[Gpus, bool]]:
    """Return the partition of each tenant that has one, and whether it is exclusive.

    A partition is the selector of the GPUs that the tenant may use. The tenants are sorted by name.
    """
    return {
        name: (tenant.partition, tenant.exclusive)
        for name, tenant in sorted(tenants.items())
        if tenant.partition is not None
    }


def divide(
    partitions: Mapping[str, tuple[Gpus, bool]], node: str, labels: Mapping[str, str], gpus: Iterable[Gpu]
) -> Division:
    """Return which tenants may use which GPUs of a node by their partitions.

    If two exclusive partitions select the same GPU, the first tenant by name gets it. The policies file alone may not
    show that they overlap, so it cannot be refused. A fixed order makes the result independent of the order of nodes.

    An exclusive partition can name GPUs by slot number, and a GPU's slot in the machine can be unknown. Then the GPU
    may be in the partition or not. No tenant gets this GPU. Other tenants must not use it. The partition's tenant must
    not use it either, because the GPU may be in another tenant's partition.

    Args:
        partitions: The partitions of all tenants, as ``bounds`` gives them.
        node: The node's name.
        labels: The node's labels.
        gpus: Its GPUs.
    """
    all_gpus = tuple(gpus)
    selected: dict[str, frozenset[int]] = {}
    owner: dict[int, str] = {}  # the exclusive partition that has a GPU, by the GPU's number
    uncertain: set[int] = set()
    clashes: set[tuple[str, str]] = set()
    for name, (rule, is_exclusive) in partitions.items():
        if not on_node(rule, node, labels):
            continue
        # True, False, or None if it is not known: the rule names GPUs by number, and this one's slot is not known.
        fits_by_number = {gpu.index: fits(rule, node, labels, gpu) for gpu in all_gpus}
        selected[name] = frozenset(number for number, is_in in fits_by_number.items() if is_in)
        if is_exclusive:
            uncertain |= {number for number, is_in in fits_by_number.items() if is_in is None}
        # Partitions come in the order of names, so the first owner of a GPU stays.
        for number in selected[name] if is_exclusive else ():
            if (first_owner := owner.setdefault(number, name)) != name:
                clashes.add((first_owner, name))

    # An exclusive GPU is left to its owner alone, an uncertain one to no partition.
    usable = {
        name: frozenset(number for number in numbers - uncertain if owner.get(number, name) == name)
        for name, numbers in selected.items()
    }
    usable = {name: numbers for name, numbers in usable.items() if numbers}
    left_for_others = frozenset(gpu.index for gpu in all_gpus if gpu.index not in owner) - uncertain
    return Division(usable | {OTHERS: left_for_others}, frozenset(clashes))


def overlaps(tenants: Mapping[str, Tenant]) -> dict[str, str]:
    """Return the tenants whose exclusive partitions overlap in every possible cluster, each with an earlier tenant.

    Only overlaps that the policies file alone shows are found.
    """
    alone = [(name, rule) for name, (rule, exclusive) in bounds(tenants).items() if exclusive]
    first_of: dict[str, str] = {}
    for (one, a), (two, b) in combinations(alone, 2):
        if two not in first_of and _surely_overlap(a, b):
            first_of[two] = one
    return first_of


def _surely_overlap(one: Gpus, other: Gpus) -> bool:
    """Return whether two selectors have a GPU in common, whatever nodes the cluster has.

    False if that depends on the nodes' labels or GPUs, which the policies file does not show.
    """
    return (
        _nodes_meet(one, other)
        and (not one.products or not other.products or not set(one.products).isdisjoint(other.products))
        and (not one.names_gpus or not other.names_gpus or _names_meet(one, other))
    )


def _names_meet(one: Gpus, other: Gpus) -> bool:
    """Return whether two selectors have a GPU's number, UUID or PCI address in common.

    A number and a UUID cannot be compared, because only the nodes tell which GPU has which number.
    """
    mine, theirs = ({uuid.lower() for uuid in rule.uuids} for rule in (one, other))
    pairs = ((one.numbers, other.numbers), (mine, theirs), (one.pci_addresses, other.pci_addresses))
    return any(not set(a).isdisjoint(b) for a, b in pairs)


def _nodes_meet(one: Gpus, other: Gpus) -> bool:
    """Return whether the policies file shows that two selectors have a node in common.

    The result is False if only the nodes' labels can show it. For example, both name the same nodes and each requires
    another label.
    """
    if one.nodes and other.nodes:
        return not set(one.nodes).isdisjoint(other.nodes) and _comparable(one, other)
    if not one.nodes and not other.nodes:
        return _comparable(one, other)
    named, wide = (one, other) if one.nodes else (other, one)
    return wide.node_selector.items() <= named.node_selector.items()


def _comparable(one: Gpus, other: Gpus) -> bool:
    mine, theirs = one.node_selector.items(), other.node_selector.items()
    return mine <= theirs or theirs <= mine
