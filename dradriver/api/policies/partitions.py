"""Which GPUs the workloads of each tenant may be placed on, by the section ``tenants``: pure functions."""

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
    """A node's GPUs, divided.

    Attributes:
        open: By tenant the machine's own numbers of the GPUs that it may have, of those that have any here; of
            ``OTHERS`` all that no other tenant has to itself.
        clashes: Tenants that both want GPUs of it to themselves, the first of which has them.
    """

    open: dict[str, frozenset[int]]
    clashes: frozenset[tuple[str, str]]


def bounds(tenants: Mapping[str, Tenant]) -> dict[str, tuple[Gpus, bool]]:
    """Return each tenant's partition, and whether it is exclusive, in the order of their names."""
    return {
        name: (tenant.partition, tenant.exclusive)
        for name, tenant in sorted(tenants.items())
        if tenant.partition is not None
    }


def divide(
    partitions: Mapping[str, tuple[Gpus, bool]], node: str, labels: Mapping[str, str], gpus: Iterable[Gpu]
) -> Division:
    """Return which tenants may use which GPUs of a node by their partitions.

    If two exclusive partitions select the same GPU, the first by name gets it. Only the nodes show that two selectors
    overlap, and the answer must not depend on the order in which nodes are seen.

    A GPU for which it is not known whether it is in an exclusive partition is given to no tenant: not to those outside
    the partition, and not to its tenant, because it may be in another one.

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


def overlap(tenants: Mapping[str, Tenant]) -> tuple[str, str] | None:
    """Return two tenants whose exclusive partitions have GPUs in common whatever nodes there are; None without any."""
    alone = [(name, rule) for name, (rule, exclusive) in bounds(tenants).items() if exclusive]
    return next(((one, two) for (one, a), (two, b) in combinations(alone, 2) if _surely_overlap(a, b)), None)


def _surely_overlap(one: Gpus, other: Gpus) -> bool:
    """Whether two rules surely fit some GPU both, if there are any that the narrower of them fits."""
    return (
        _nodes_meet(one, other)
        and (not one.products or not other.products or not set(one.products).isdisjoint(other.products))
        and (not one.names_gpus or not other.names_gpus or _names_meet(one, other))
    )


def _names_meet(one: Gpus, other: Gpus) -> bool:
    """Whether both name a GPU in the same way: which number a UUID has, only the nodes tell."""
    mine, theirs = ({uuid.lower() for uuid in rule.uuids} for rule in (one, other))
    pairs = ((one.numbers, other.numbers), (mine, theirs), (one.pci_addresses, other.pci_addresses))
    return any(not set(a).isdisjoint(b) for a, b in pairs)


def _nodes_meet(one: Gpus, other: Gpus) -> bool:
    """Whether every node that one of them fits the other fits, too, as far as the file tells.

    Two that name nodes and ask for labels beside that may both mean other nodes of these: only nodes tell.
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
