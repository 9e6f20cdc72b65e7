"""Refusals of the fleet: why no node of a cluster fits a request for whole GPUs, and the nearest thing that does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dradriver.allocator.choice import fallback_criteria, phrases
from dradriver.allocator.choice.machine_refusals import shortfall
from dradriver.allocator.fleet.candidates import Candidates
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.allocator.sets.criteria import ANY, Criteria
from dradriver.reason import Cause

_MOST_MASKS = 512  # of a group, looked through for what is nearest


def refusal(
    groups: Collection[NodeGroup], candidates: Sequence[Candidates], request: Whole, *, explain: bool
) -> NoPlaceError:
    """Return the refusal of the fleet: the error that says why no node fits the request, and what would.

    Args:
        groups: All nodes of the cluster.
        candidates: Those that might have been taken.
        request: What was wanted.
        explain: Whether the message is to name the nearest thing that is possible; else it is the stable one.
    """
    what = phrases.wanted(request)
    if groups and not any(group.vendor == request.vendor for group in groups):
        have = " and ".join(sorted({group.vendor for group in groups}))
        return NoPlaceError(f"{what}: no; no node has GPUs of {request.vendor}, only of {have}", cause=Cause.NEVER)
    groups = [group for group in groups if group.vendor == request.vendor]
    of_vendor = [each for each in candidates if each.group.vendor == request.vendor]
    cause, why = _stable(groups, request)
    stable = f"{what}: no; {why}"
    if not explain:
        return NoPlaceError(stable, cause=cause)
    nearest = _nearest(groups, of_vendor, request)
    if candidates and not of_vendor:
        have = " and ".join(sorted({each.group.vendor for each in candidates}))
        nearest = f"no eligible node has GPUs of {request.vendor}, only of {have}"
    return NoPlaceError(f"{what}: no; {nearest}", stable=stable, cause=cause)


def _stable(groups: Collection[NodeGroup], request: Whole) -> tuple[Cause, str]:
    if not groups:
        return Cause.NODES, "no node has GPUs"  # of those that the request may use; others may have some
    if any(could_have(group, request) for group in groups):
        return Cause.GPUS, "no eligible node has such a set free"
    if why := never(groups, request):
        return Cause.NEVER, why
    return Cause.NEVER, "no node of this cluster has such a set even when all its GPUs are free"


def never(groups: Iterable[NodeGroup], request: Whole) -> str:
    """Return the reason for a refusal by rule: why no node of some groups can ever have such a set; else empty."""
    machines = [group.machine for group in groups if request.gpus <= group.suitable(request).bit_count()]
    every = [
        phrases.wrong_count(machine, request.gpus) or phrases.no_figure(machine.vendor, request) for machine in machines
    ]
    return "; ".join(sorted(set(every))) if all(every) else ""


def could_have(group: NodeGroup, request: Whole) -> bool:
    """Return for a refusal whether nodes of a group have the requested set when all their GPUs are free."""
    include = group.include(request)
    if request.gpus > group.tables.size or include is None:
        return False
    criteria = fallback_criteria.required(request, include=include)
    return group.tables.fits(request.gpus, group.suitable(request), criteria)


def _nearest(groups: Collection[NodeGroup], candidates: Sequence[Candidates], request: Whole) -> str:
    """Return in words what a request for whole GPUs lacks, and the nearest thing that is possible.

    The causes are tried from the simplest to the deepest: no node, machines too small, no machine can ever have such a
    set, too few free GPUs, and last a property of the set that no free GPUs have.
    """
    if not candidates:
        return "no node is eligible" if groups else "no node has GPUs"
    most_gpus = max(nodes.group.tables.size for nodes in candidates)
    if request.gpus > most_gpus:
        biggest = min(nodes.first_name() for nodes in candidates if nodes.group.tables.size == most_gpus)
        return f"the largest machine, {biggest}, has {most_gpus}"
    if why := never([nodes.group for nodes in candidates], request):
        return why

    # Without criteria, any free GPUs of the requested kind count: this is the largest number on one node.
    largest_free = _largest_set(candidates, request.gpus, criteria=None, request=request)
    gpu_kind = phrases.wanted_gpus(request)
    if largest_free is None:
        return f"no GPU{' ' + gpu_kind if gpu_kind else ''} is free{_kinds(groups, request)}"
    count, node, group = largest_free
    if count < request.gpus:
        # Some machines give only certain sets of GPUs together: such a rule may be the cause.
        rule = phrases.together(group.machine) if request.gpus <= group.tables.size else ""
        rule = f", as {rule}" if rule else ""
        return f"most GPUs{' ' + gpu_kind if gpu_kind else ''} free on one node: {count} on {node}{rule}"

    # So many GPUs are free on some node: only a property of the set is missing, perhaps only bandwidth.
    properties, criteria = phrases.wanted_set(request), fallback_criteria.required(request)
    if (shortfall := _shortfall(candidates, request, criteria)) is not None:
        gbps, figure, node_of_most = shortfall
        nearest = f"the most {figure} that so many free GPUs of a node have is {gbps:g} GB/s on {node_of_most}"
    else:
        largest_fitting = _largest_set(candidates, request.gpus - 1, criteria=criteria, request=request)
        if largest_fitting is None:
            nearest = f"no free GPU has {properties}"
        else:
            fitting_count, fitting_node, _ = largest_fitting
            nearest = f"largest free {properties} set is {fitting_count} on {fitting_node}"
    return f"{nearest}; without {properties} there is a place on {node}"


def _kinds(groups: Collection[NodeGroup], request: Whole) -> str:
    """What the nodes have instead of a product or architecture that none of them has; else empty."""
    what = "product" if request.product else "architecture" if request.architecture else ""
    named = Whole(containers=(1,), vendor=request.vendor, product=request.product, architecture=request.architecture)
    if not what or any(group.suitable(named) for group in groups):
        return ""
    have = {getattr(gpu, what) for group in groups for gpu in group.machine.gpus} - {""}
    return f"; the nodes have {', '.join(sorted(have))}" if have else ""


def _largest_set(
    candidates: Sequence[Candidates], most: int, *, criteria: Criteria | None, request: Whole
) -> tuple[int, str, NodeGroup] | None:
    """Size of the largest free set of at most ``most`` GPUs, the first node by name that has it, and its group."""
    for gpus in range(most, 0, -1):
        found = []
        for each in candidates:
            include = each.group.include(request)
            if gpus > each.group.tables.size or include is None:
                continue
            own = ANY if criteria is None else criteria.including(include)
            masks = each.masks[each.group.tables.has(gpus, each.masks, own)]
            if len(masks):
                found.append((each.first_name(masks), each.group))
        if found:
            return gpus, *min(found, key=lambda one: one[0])
    return None


def _shortfall(candidates: Sequence[Candidates], request: Whole, criteria: Criteria) -> tuple[float, str, str] | None:
    """The most bandwidth there is, of which kind and on which node, if that alone is missing; else None."""
    best: tuple[float, str, Candidates, int] | None = None
    for each in candidates:
        include = each.group.include(request)
        if request.gpus > each.group.tables.size or include is None:
            continue
        for mask in each.masks[-_MOST_MASKS:].tolist():
            short = shortfall(each.group.tables, mask, gpus=request.gpus, criteria=criteria.including(include))
            if short is not None and (best is None or short[0] > best[0]):
                best = short[0], short[1], each, mask
    return None if best is None else (best[0], best[1], best[2].first_name([best[3]]))
