"""Says why no node of a cluster fits a request for whole GPUs, and which possibility is nearest to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dradriver.allocator.choice import fallback_criteria, phrases
from dradriver.allocator.choice.machine_refusals import shortfall
from dradriver.allocator.fleet.candidates import Candidates
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.allocator.sets.criteria import ANY, Criteria
from dradriver.counted import counted
from dradriver.reason import Cause, capitalized, sentences

_MOST_MASKS = 512  # of a group, looked through for what is nearest


def refusal(
    groups: Collection[NodeGroup], candidates: Sequence[Candidates], request: Whole, *, explain: bool
) -> NoPlaceError:
    """Return the error that says why no node fits a request, and what would be possible.

    Args:
        groups: All nodes of the cluster.
        candidates: The nodes that the request was allowed to use.
        request: The GPUs that a pod requests.
        explain: Whether the message names the nearest thing that is possible.
    """
    what = phrases.wanted(request)
    if groups and not any(group.vendor == request.vendor for group in groups):
        have = " and ".join(sorted({group.vendor for group in groups}))
        why = f"no node has GPUs of vendor {request.vendor}, only of {have}"
        return NoPlaceError(why, request=what, cause=Cause.NEVER)
    groups = [group for group in groups if group.vendor == request.vendor]
    of_vendor = [each for each in candidates if each.group.vendor == request.vendor]
    cause, why = _stable(groups, request)
    if not explain or not groups:
        return NoPlaceError(why, request=what, cause=cause)
    nearest = _nearest(of_vendor, groups, request)
    if candidates and not of_vendor:
        have = " and ".join(sorted({each.group.vendor for each in candidates}))
        nearest = f"No eligible node has GPUs of vendor {request.vendor}, only of {have}"
    return NoPlaceError(why, request=what, nearest=nearest, cause=cause)


def _stable(groups: Collection[NodeGroup], request: Whole) -> tuple[Cause, str]:
    if not groups:
        return Cause.NODES, "no node has GPUs"  # of those that the request may use; others may have some
    if any(could_have(group, request) for group in groups):
        return Cause.GPUS, "no eligible node has such a free set"
    if why := never(groups, request):
        return Cause.NEVER, why
    return Cause.NEVER, "no node of this cluster has such a set, even if all its GPUs are free"


def never(groups: Iterable[NodeGroup], request: Whole) -> str:
    """Return as text why nodes can never have the requested set, even if all GPUs are free.

    ``groups`` are the nodes. There are two reasons: the machine's maker allows no pod this number of GPUs, or the
    request requires a bandwidth that is not known for the vendor. Nodes with too few suitable GPUs do not count. The
    text is empty if a node can have the set.
    """
    machines = [group.machine for group in groups if request.gpus <= group.suitable(request).bit_count()]
    every = [
        phrases.wrong_count(machine, request.gpus) or phrases.no_figure(machine.vendor, request) for machine in machines
    ]
    texts = sorted(set(every)) if all(every) else []
    return ". ".join(text if number == 0 else capitalized(text) for number, text in enumerate(texts))


def could_have(group: NodeGroup, request: Whole) -> bool:
    """Return whether nodes of a group would have the requested set if all their GPUs were free."""
    include = group.include(request)
    if request.gpus > group.tables.size or include is None:
        return False
    criteria = fallback_criteria.required(request, include=include)
    return group.tables.fits(request.gpus, group.suitable(request), criteria)


def _nearest(candidates: Sequence[Candidates], groups: Collection[NodeGroup], request: Whole) -> str:
    """Return in sentences what a request for whole GPUs lacks, and what is possible.

    The text is about the first of these causes that applies:

    1. There is no node.
    2. The machines are too small.
    3. No machine can ever have such a set.
    4. Too few GPUs are free.
    5. The free GPUs lack a required property.

    The text is empty if cause 3 applies to all nodes of the cluster (``groups``), because ``refusal`` says so itself.
    ``candidates`` are the nodes that the request may use.
    """
    if not candidates:
        return "No node is eligible"
    most_gpus = max(nodes.group.tables.size for nodes in candidates)
    if request.gpus > most_gpus:
        biggest = min(nodes.first_name() for nodes in candidates if nodes.group.tables.size == most_gpus)
        return f"The largest machine, {biggest}, has {counted(most_gpus, 'GPU')}"
    if why := never([nodes.group for nodes in candidates], request):
        return "" if never(groups, request) else f"On the eligible nodes, {why}"

    # Without criteria, any free GPUs of the requested kind count: this is the largest number on one node.
    largest_free = _largest_set(candidates, request.gpus, criteria=None, request=request)
    gpu_kind = phrases.wanted_gpus(request)
    if largest_free is None:
        return sentences(f"No GPU{' ' + gpu_kind if gpu_kind else ''} is free", _products(groups, request))
    count, node, group = largest_free
    if count < request.gpus:
        # Some machines give only certain sets of GPUs together: such a rule may be the cause.
        rule = phrases.together(group.machine) if request.gpus <= group.tables.size else ""
        largest = f"Most GPUs{' ' + gpu_kind if gpu_kind else ''} on one node: {count} free on {node}"
        return sentences(largest, f"There, {rule}" if rule else "")

    # So many GPUs are free on some node: only a property of the set is missing, perhaps only bandwidth.
    properties, criteria = phrases.wanted_set(request), fallback_criteria.required(request)
    if (shortfall := _shortfall(candidates, request, criteria)) is not None:
        gbps, figure, node_of_most = shortfall
        nearest = f"The highest {figure} of {request.gpus} free GPUs on one node is {gbps:g} GB/s, on {node_of_most}"
    else:
        largest_fitting = _largest_set(candidates, request.gpus - 1, criteria=criteria, request=request)
        if largest_fitting is None:
            nearest = f"No free GPU has {properties}"
        else:
            fitting_count, fitting_node, _ = largest_fitting
            nearest = f"Largest free set with {properties}: {counted(fitting_count, 'GPU')} on {fitting_node}"
    return sentences(nearest, f"Without {properties}, there is a place on {node}")


def _products(groups: Collection[NodeGroup], request: Whole) -> str:
    """Return as text the products or architectures of the nodes, if no node has the requested one.

    ``groups`` has the nodes. The text is empty if a node has it, or if the request names none.
    """
    what = "product" if request.product else "architecture" if request.architecture else ""
    named = Whole(containers=(1,), vendor=request.vendor, product=request.product, architecture=request.architecture)
    if not what or any(group.suitable(named) for group in groups):
        return ""
    have = {getattr(gpu, what) for group in groups for gpu in group.machine.gpus} - {""}
    return f"The nodes have {', '.join(sorted(have))}" if have else ""


def _largest_set(
    candidates: Sequence[Candidates], most: int, *, criteria: Criteria | None, request: Whole
) -> tuple[int, str, NodeGroup] | None:
    """Return the largest free set of at most ``most`` GPUs: its size, node and group.

    If several nodes have a set of this size, the first of them by name is returned. The result is None if there is no
    set. ``candidates`` are the nodes that the request may use. ``criteria`` are the properties that the set must have;
    None if any set will do.
    """
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
    """Return how near the free GPUs come to the bandwidth that a request requires.

    The result has three parts: the highest bandwidth of a free set in GB/s, its kind as text (``bus bandwidth``), and
    the node that has the set. The result is None if the request fails for another reason than bandwidth. ``candidates``
    are the nodes that the request may use; of each kind of machine, at most 512 different masks of free GPUs are looked
    at. ``criteria`` are the properties that the set must have.
    """
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
