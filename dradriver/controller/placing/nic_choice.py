"""Chooses the NICs that a pod gets with its GPUs: free NICs of the same node, the nearest first, no NIC twice.

GPUs are chosen first, and NICs follow them. GPUs without a matching NIC are left out only in two cases: the pod
requires near NICs, or a constraint of its claim covers GPUs and NICs. A *constraint* (``matchAttribute``) requires that
several devices have the same value of an attribute, such as a PCIe root.

``nic_places`` and ``gang_nics`` call this module.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from dradriver.allocator.choice import nearest_nics
from dradriver.allocator.choice.gpus_with_nics import served
from dradriver.allocator.choice.nearest_nics import NEVER, Costs
from dradriver.allocator.request import NEAR_REQUIRED
from dradriver.api.claims.pins import Key
from dradriver.api.vocabulary.nic_requests import Alike, NicAsk, NicRequest
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics.nic_distances import of_gpu, same
from dradriver.cluster.nics.nic_inventory import Place
from dradriver.controller.placing.nic_node import NicSearchEffort, NodeNics, Usable
from dradriver.topology.machine import Gpu

Gpus: TypeAlias = Mapping[str, Sequence[str]]
"""Uuids of the chosen GPUs by the claim's requests."""
Chosen: TypeAlias = dict[str, tuple[str, ...]]
"""PCI addresses of NICs by the claim's requests."""


def chosen(
    picture: Picture,
    ask: NicAsk,
    node: str,
    gpus: Gpus,
    *,
    besides: Key | None = None,
    taken: Collection[Place] = (),
    effort: NicSearchEffort | None = None,
) -> Chosen | None:
    """Return NICs for GPUs that are already chosen; None if too few NICs match.

    The result has the PCI addresses by the name of the claim's request. It is the cheapest of all assignments that
    match: each NIC is as near to its GPU as possible.

    Args:
        picture: The cluster cache.
        ask: The NICs that the claim requests.
        node: The node of the GPUs.
        gpus: The uuids of the chosen GPUs, by the name of the claim's request.
        besides: A claim whose NICs count as free; None for none.
        taken: NICs that count as taken.
        effort: The remaining effort of a larger search that includes this call; None for a full effort.
    """
    if not ask.requests:
        return {}
    # ``counts.looked(ended=True)`` notes a search in vain that was cut short: the node may have the NICs all the same.
    effort = effort or NicSearchEffort()
    if not effort.may_begin(node):
        picture.nics.counts.looked(ask, node, ended=True)
        return None

    node_nics = NodeNics(picture, ask, node, besides, taken)
    gpus_by_request = {name: [node_nics.number[uuid] for uuid in uuids] for name, uuids in gpus.items()}
    all_gpus = list(dict.fromkeys(itertools.chain(*gpus_by_request.values())))
    costs = node_nics.costs(all_gpus)
    # What each NIC costs at least: its cost for the nearest of the GPUs.
    lowest_costs = costs.min(axis=0)
    reachable = [{nic for nic in nics if lowest_costs[nic] < NEVER} for nics in node_nics.fitting]
    usable = _matching_gpus(node_nics, ask, gpus_by_request, reachable)
    # From here on a GPU is its row in ``costs``: (GPUs, NICs).
    slots = _slots(ask, {name: [all_gpus.index(gpu) for gpu in rows] for name, rows in gpus_by_request.items()})
    best: tuple[bool, int, Chosen] | None = None  # whether slots were not kept, cost, NICs; from ``_assigned``

    def least_cost(usable: Usable) -> int:
        cheapest = np.sort(lowest_costs[sorted(set().union(*usable))])[: ask.count]
        return int(cheapest.sum()) if len(cheapest) == ask.count else NEVER

    def cost_to_beat() -> int:
        # While the best assignment gives some NIC to another request's GPU, any cost may be an improvement.
        if best is None:
            return NEVER
        are_slots_broken, cost, _ = best
        return NEVER if are_slots_broken else cost

    effort.begin(node, node_nics.work)
    if usable is not None:
        for alternative in node_nics.alternatives(
            _constraints_among_nics(ask), usable, effort, least_cost, cost_to_beat
        ):
            assigned = _assigned(node_nics, ask, costs, alternative, slots)
            if assigned is not None and (best is None or assigned[:2] < best[:2]):
                best = assigned

    if best is None and effort.ended:
        picture.nics.counts.looked(ask, node, ended=True)
    # A failure for these GPUs or with these NICs taken proves nothing about the node for other calls.
    elif best is not None or not (demands(ask) or besides or taken):
        picture.nics.counts.looked(ask, node, ended=False)
    return None if best is None else best[2]


def includes_gpus(ask: NicAsk, constraint: Alike) -> bool:
    """Return whether a constraint of the claim ``ask`` covers requests for GPUs, too.

    If not, it covers only requests for NICs.
    """
    return not set(constraint.requests) <= {request.name for request in ask.requests}


def _constraints_among_nics(ask: NicAsk) -> list[Alike]:
    """Return those constraints in ``ask``, a claim's NICs, that cover only requests for NICs."""
    return [constraint for constraint in ask.alike if not includes_gpus(ask, constraint)]


def _matching_gpus(
    node_nics: NodeNics, ask: NicAsk, gpus: Mapping[str, Sequence[int]], usable: Usable
) -> Usable | None:
    """Return the usable NICs that have the attributes of the chosen GPUs, where required.

    A constraint of a claim can require that NICs and GPUs have the same value of an attribute. None if the GPUs
    themselves have different values.

    Args:
        node_nics: The NICs of the node.
        ask: The NICs that the claim requests, and its constraints.
        gpus: The positions of the chosen GPUs, by the name of the claim's request.
        usable: The NICs that each request may have so far; it is changed.
    """
    for constraint in ask.alike:
        values = {
            of_gpu(node_nics.machine.gpus[gpu], constraint.attribute)
            for name in constraint.requests
            for gpu in gpus.get(name, ())
        }
        if not values:
            continue
        value = values.pop()
        if values or value is None:
            return None
        for index, request in enumerate(ask.requests):
            if request.name in constraint.requests:
                usable[index] = {
                    nic for nic in usable[index] if same(node_nics.value(index, nic, constraint.attribute), value)
                }
    return usable


def _assigned(
    node_nics: NodeNics, ask: NicAsk, costs: Costs, usable: Usable, slots: Sequence[tuple[int, int]]
) -> tuple[bool, int, Chosen] | None:
    """Return the cheapest assignment of NICs to requests; None if there is none.

    Args:
        node_nics: The node's NICs.
        ask: The NICs that the claim requests.
        costs: What each NIC costs for each GPU: (GPUs, NICs).
        usable: The NICs that each request may have.
        slots: For each requested NIC, its request and the GPU that it is for, from ``_slots``; empty if any NIC may
            serve any GPU.

    Returns:
        Whether a NIC had to serve another GPU than ``slots`` says, the sum of the costs, and the NICs. The smaller
            tuple is better.
    """
    if slots:
        slot_costs = np.full((len(slots), costs.shape[1]), NEVER, dtype=np.int64)
        for row, (index, gpu) in enumerate(slots):
            nics = sorted(usable[index])
            slot_costs[row, nics] = costs[gpu, nics]
        # The NIC of each slot, all different, with the least sum of costs; None if there is no such assignment.
        assigned = nearest_nics.assign(slot_costs)
        if assigned is not None:
            cost = sum(int(slot_costs[row, nic]) for row, nic in enumerate(assigned))
            return False, cost, _by_request(node_nics, ask, assigned)

    # Without slots, requests that may have the same NICs count as one request. Its NICs, in the order of their GPUs,
    # are then divided among the requests in the claim's order.
    groups: dict[frozenset[int], list[int]] = {}
    for index, usable_nics in enumerate(usable):
        groups.setdefault(frozenset(usable_nics), []).append(index)
    counts = [sum(ask.requests[index].count for index in group) for group in groups.values()]
    # For each group its NICs, as pairs of GPU and NIC, with the same number for each GPU or one less.
    dealt = nearest_nics.dealt(costs, list(groups), counts)
    if dealt is None:
        return None
    nics_by_request: dict[int, list[int]] = {}
    for group, pairs in zip(groups.values(), dealt, strict=True):
        group_nics = iter(nic for _, nic in pairs)
        for index in group:
            nics_by_request[index] = list(itertools.islice(group_nics, ask.requests[index].count))
    in_order = [nic for index in range(len(ask.requests)) for nic in nics_by_request[index]]
    cost = sum(int(costs[gpu, nic]) for pairs in dealt for gpu, nic in pairs)
    return bool(slots), cost, _by_request(node_nics, ask, in_order)


def _slots(ask: NicAsk, gpus: Mapping[str, Sequence[int]]) -> list[tuple[int, int]]:
    """Return for each requested NIC the indices of its request and of its GPU.

    ``ask`` has the requests for NICs; ``gpus`` are indices of the chosen GPUs by the name of the claim's request. The
    list is empty if any NIC may serve any GPU. A request for NICs belongs to certain GPUs in two cases:

    1. A constraint of the claim ties it to requests for GPUs. Then it belongs to their GPUs.
    2. The claim has as many requests for NICs as for GPUs. Then the first request for NICs belongs to the GPUs of the
      first request for GPUs, and so on. This is a guess. It counts only if each GPU then has the same number of NICs,
      or one more.
    """
    all_gpus = list(dict.fromkeys(itertools.chain(*gpus.values())))
    has_pairs = len(gpus) == len(ask.requests)
    gpus_of_request: list[list[int]] = []
    has_ties = False
    for request, paired_gpus in itertools.zip_longest(ask.requests, gpus.values() if has_pairs else ()):
        tied_gpus = _tied_gpus(ask, request, gpus)
        has_ties = has_ties or bool(tied_gpus)
        gpus_of_request.append(tied_gpus or list(paired_gpus if has_pairs else all_gpus))

    def is_unrestricted(index: int) -> bool:
        return len(gpus_of_request[index]) == len(all_gpus)

    indices = range(len(ask.requests))
    if all(map(is_unrestricted, indices)):
        return []

    # Each NIC goes to the GPU of its request that has the fewest so far. Requests for any GPU come last and fill up.
    load = dict.fromkeys(all_gpus, 0)
    slots: list[tuple[int, int]] = []
    for index in sorted(indices, key=is_unrestricted):
        for _ in range(ask.requests[index].count):
            gpu = min(gpus_of_request[index], key=load.__getitem__)
            load[gpu] += 1
            slots.append((index, gpu))
    is_even = max(load.values()) - min(load.values()) <= 1
    return sorted(slots, key=lambda slot: slot[0]) if has_ties or is_even else []


def _tied_gpus(ask: NicAsk, request: NicRequest, gpus: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the GPUs that constraints in ``ask`` tie to ``request``, a request for NICs.

    ``gpus`` are indices of GPUs by the name of the claim's request.
    """
    constraints = [constraint for constraint in ask.alike if request.name in constraint.requests]
    names = dict.fromkeys(name for constraint in constraints for name in constraint.requests)
    return list(dict.fromkeys(gpu for name in names for gpu in gpus.get(name, ())))


def _by_request(node_nics: NodeNics, ask: NicAsk, nics: Sequence[int]) -> Chosen:
    """Return the PCI addresses of NICs by the name of the claim's request.

    ``nics`` has numbers of NICs in ``node_nics``: first the NICs for the first request in ``ask``, then for the second,
    and so on.
    """
    remaining = iter(nics)
    return {
        request.name: tuple(node_nics.addresses[nic] for nic in itertools.islice(remaining, request.count))
        for request in ask.requests
    }


def gpus_apart(
    picture: Picture,
    ask: NicAsk,
    node: str,
    free: Collection[int],
    gpus: int,
    *,
    is_last_pod: bool = True,
    one_set: bool = False,
    taken: Collection[Place] = (),
    effort: NicSearchEffort | None = None,
) -> frozenset[int]:
    """Return the numbers of a node's GPUs that can all have NICs at once.

    The size of the result says what it means:

    * More than ``gpus`` GPUs: any ``gpus`` of them can have their NICs.
    * Exactly ``gpus`` GPUs: these can have their NICs. Another set may not, for example if some GPUs get one NIC more.
    * Fewer GPUs: no set of ``gpus`` GPUs can have its NICs.

    Args:
        picture: The cluster cache.
        ask: The NICs that the claim requests.
        node: The node.
        free: Numbers of its free GPUs.
        gpus: How many GPUs share the requested NICs.
        is_last_pod: Whether no other pod with the same request needs GPUs of the node after this one.
        one_set: Whether to return one set only: the set that leaves most to other pods.
        taken: NICs that count as taken.
        effort: The remaining effort of a larger search that includes this call; None for a full effort.
    """
    effort = effort or NicSearchEffort()
    if not effort.may_begin(node):
        picture.nics.counts.looked(ask, node, ended=True)
        return frozenset()

    # 1. Which NIC can serve which of the free GPUs; GPUs are rows from here on.
    node_nics = NodeNics(picture, ask, node, None, taken)
    positions = [position for position, gpu in enumerate(node_nics.machine.gpus) if gpu.index in free]
    free_gpus = [node_nics.machine.gpus[position] for position in positions]
    costs = node_nics.costs(positions)
    gpus_of_nic = _gpus_of_nics(node_nics, ask, free_gpus, costs)

    # 2. GPUs with the cheapest NICs first: the sum for as many NICs as one GPU gets at most.
    nics_per_gpu = -(-ask.count // gpus)

    def cheapest(row: int) -> int:
        nic_costs = sorted(int(costs[row, nic]) for nic, rows in gpus_of_nic.items() if row in rows)
        return sum(nic_costs[:nics_per_gpu])

    order = sorted(range(len(free_gpus)), key=lambda row: (cheapest(row), row))

    # 3. For each way to satisfy the constraints among NICs, the GPUs that can have NICs together.
    counts = [request.count for request in ask.requests]
    best_rows: list[int] = []
    effort.begin(node, node_nics.work)
    # The constants say that all ways cost the same: only the number of GPUs counts here.
    for usable in node_nics.alternatives(
        _constraints_among_nics(ask), node_nics.fitting, effort, lambda _: 0, lambda: NEVER
    ):
        # NICs that serve the same requests and the same GPUs are interchangeable: only their number is needed.
        interchangeable: Counter[tuple[frozenset[int], frozenset[int]]] = Counter()
        for nic, rows in gpus_of_nic.items():
            if requests := frozenset(index for index, nics in enumerate(usable) if nic in nics):
                interchangeable[requests, rows] += 1
        # More than ``gpus`` rows if any set of them will do, fewer if no set will.
        served_rows = served(
            interchangeable, counts, order, gpus, effort.more, is_last_pod=is_last_pod, one_set=one_set
        )
        best_rows = max(best_rows, served_rows, key=len)
        if len(best_rows) >= gpus:
            break

    # If other sets would do, too, a later failure with the returned one does not prove that the node has no place.
    is_incomplete = effort.ended if len(best_rows) < gpus else not _offers_all(ask, gpus)
    picture.nics.counts.looked(ask, node, ended=is_incomplete)
    return frozenset(free_gpus[row].index for row in best_rows)


def _gpus_of_nics(
    node_nics: NodeNics, ask: NicAsk, free_gpus: Sequence[Gpu], costs: Costs
) -> dict[int, frozenset[int]]:
    """Return by NIC the GPUs that it can serve, as indices in ``free_gpus``.

    A NIC can serve a GPU if it is near enough. If a constraint of the claim covers GPUs, the NIC and the GPU must also
    have the same value of the constraint's attribute.

    Args:
        node_nics: The NICs of the node.
        ask: The NICs that the claim requests, and its constraints.
        free_gpus: The node's free GPUs.
        costs: (len(free_gpus), NICs), what each NIC costs for each GPU; ``NEVER`` if it is not near enough.
    """
    # By request for NICs, the constraints that cover both its NICs and GPUs.
    constraints = [
        [
            constraint
            for constraint in ask.alike
            if request.name in constraint.requests and includes_gpus(ask, constraint)
        ]
        for request in ask.requests
    ]

    # ``of_gpu`` returns the GPU's value of an attribute. ``same`` compares it as the scheduler does, type included.
    def matches(nic: int, gpu: Gpu) -> bool:
        """Return whether a NIC may serve a GPU by the claim's constraints.

        It may if it fits at least one request whose constraints hold for both.
        """
        return any(
            all(
                same(node_nics.value(index, nic, constraint.attribute), of_gpu(gpu, constraint.attribute))
                for constraint in constraints[index]
            )
            for index, fitting_nics in enumerate(node_nics.fitting)
            if nic in fitting_nics
        )

    has_constraints = any(constraints)
    return {
        nic: frozenset(
            row
            for row, is_near in enumerate(is_near_by_gpu)
            if is_near and (not has_constraints or matches(nic, free_gpus[row]))
        )
        for nic, is_near_by_gpu in enumerate((costs < NEVER).T.tolist())
    }


def _offers_all(ask: NicAsk, gpus: int) -> bool:
    """Return whether ``gpus_apart`` returns all GPUs that can have NICs, not one of several sets.

    If it returns one of several possible sets, a search that fails with this set could succeed with another one. So the
    node can still have a place. ``gpus`` is how many GPUs share the NICs that ``ask`` requests.
    """
    has_one_kind = (
        len({(request.device_class, request.selectors, request.tolerations) for request in ask.requests}) == 1
    )
    is_even = ask.count % gpus == 0
    return (gpus == 1 or (has_one_kind and is_even)) and not ask.alike


def demands(ask: NicAsk) -> bool:
    """Return whether ``ask``, a request for NICs, can make some GPUs unusable.

    It can if NICs must be near GPUs, or if a constraint covers NICs and GPUs.
    """
    return ask.near == NEAR_REQUIRED or any(includes_gpus(ask, constraint) for constraint in ask.alike)
