"""Which NICs a pod gets with its GPUs: free ones of their node, those nearest, different ones for different GPUs.

GPUs come first: of a set that is chosen the NICs follow. Only where the pod says that they must be near, or its claim
that they must have something in common with GPUs, are GPUs left out that can have no such NIC.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from dradriver.allocator.choice import nearest_nics
from dradriver.allocator.choice.nearest_nics import NEVER, Costs
from dradriver.allocator.choice.served_gpus import served
from dradriver.allocator.request import NEAR_REQUIRED, NoPlaceError
from dradriver.api.claims.pins import Key
from dradriver.api.vocabulary.nic_requests import Alike, NicAsk
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics.nic_distances import of_gpu, same
from dradriver.cluster.nics.nic_inventory import Place
from dradriver.controller.placing.nic_node import NodeNics, Tries, Usable
from dradriver.reason import Cause
from dradriver.topology.machine import Gpu

Gpus: TypeAlias = Mapping[str, Sequence[str]]
"""Uuids of the chosen GPUs by the claim's requests."""
Chosen: TypeAlias = dict[str, tuple[str, ...]]
"""PCI addresses of NICs by the claim's requests."""

_TOLD: Final = 3  # nodes of which is said how many NICs they have


class NoNicsError(NoPlaceError):
    """There are GPUs, and not the NICs beside them."""

    reason = "NoNICs"


def chosen(
    picture: Picture,
    ask: NicAsk,
    node: str,
    gpus: Gpus,
    *,
    besides: Key | None = None,
    taken: Collection[Place] = (),
    tries: Tries | None = None,
) -> Chosen | None:
    """Return the NICs that go with chosen GPUs; None where there are not so many that are what is asked for.

    Args:
        picture: The cluster.
        ask: What is asked for.
        node: The GPUs' node.
        gpus: They.
        besides: A claim whose NICs count as free.
        taken: NICs that count as taken.
        tries: What is left of a search of which this is a part.
    """
    if not ask.requests:
        return {}
    tries = tries or Tries()
    if not tries.may_begin(node):
        picture.nics.counts.looked(ask, node, ended=True)
        return None
    here = NodeNics(picture, ask, node, besides, taken)
    rows = {name: [here.number[uuid] for uuid in own] for name, own in gpus.items()}
    flat = list(dict.fromkeys(itertools.chain(*rows.values())))
    costs = here.costs(flat)
    floor = costs.min(axis=0)
    usable = _beside(here, ask, rows, [{column for column in own if floor[column] < NEVER} for own in here.fitting])

    def least(usable: Usable) -> int:
        every = np.sort(floor[sorted(set().union(*usable))])[: ask.count]
        return int(every.sum()) if len(every) == ask.count else NEVER

    def bound() -> int:
        return NEVER if best is None or best[0] else best[1]

    slots = _slots(ask, {name: [flat.index(gpu) for gpu in own] for name, own in rows.items()})
    best: tuple[bool, int, Chosen] | None = None
    tries.begin(node, here.work)
    if usable is not None:
        for own in here.ways(_of_nics_alone(ask), usable, tries, least, bound):
            found = _assigned(here, ask, costs, own, slots)
            if found is not None and (best is None or found[:2] < best[:2]):
                best = found
    if best is None and tries.ended:
        picture.nics.counts.looked(ask, node, ended=True)
    elif best is not None or not (demands(ask) or besides or taken):
        picture.nics.counts.looked(ask, node, ended=False)
    return None if best is None else best[2]


def _of_nics_alone(ask: NicAsk) -> list[Alike]:
    """Return what NICs must have in common with each other only."""
    return [one for one in ask.alike if not set(one.requests) - _of_nics(ask)]


def _beside(here: NodeNics, ask: NicAsk, gpus: Mapping[str, Sequence[int]], usable: Usable) -> Usable | None:
    """Return which NICs each request may have by what they must have in common with GPUs; None for none.

    The GPUs are by the claim's requests, each by its position.
    """
    for one in ask.alike:
        every = {of_gpu(here.machine.gpus[gpu], one.attribute) for name in one.requests for gpu in gpus.get(name, ())}
        if not every:
            continue
        value = every.pop()
        if every or value is None:
            return None
        for at, request in enumerate(ask.requests):
            if request.name in one.requests:
                usable[at] = {column for column in usable[at] if same(here.value(at, column, one.attribute), value)}
    return usable


def _assigned(
    here: NodeNics, ask: NicAsk, costs: Costs, usable: Usable, slots: Sequence[tuple[int, int]]
) -> tuple[bool, int, Chosen] | None:
    """Return who gets what with the least sum of the ways, that sum, and whether not every NIC is its own GPU's."""
    if slots:
        wide = np.full((len(slots), costs.shape[1]), NEVER, dtype=np.int64)
        for row, (at, gpu) in enumerate(slots):
            own = sorted(usable[at])
            wide[row, own] = costs[gpu, own]
        if (found := nearest_nics.assign(wide)) is not None:
            return False, sum(int(wide[row, column]) for row, column in enumerate(found)), _given(here, ask, found)
    # Requests that may have the same NICs are one: by their order they get those of the first GPUs first.
    alike: dict[frozenset[int], list[int]] = {}
    for at, own_nics in enumerate(usable):
        alike.setdefault(frozenset(own_nics), []).append(at)
    counts = [sum(ask.requests[at].count for at in each) for each in alike.values()]
    dealt = nearest_nics.dealt(costs, list(alike), counts)
    if dealt is None:
        return None
    columns: dict[int, list[int]] = {}
    for each, pairs in zip(alike.values(), dealt, strict=True):
        every = iter(column for _, column in pairs)
        columns.update((at, list(itertools.islice(every, ask.requests[at].count))) for at in each)
    flat = [column for at in range(len(ask.requests)) for column in columns[at]]
    cost = sum(int(costs[gpu, column]) for pairs in dealt for gpu, column in pairs)
    return bool(slots), cost, _given(here, ask, flat)


def _slots(ask: NicAsk, gpus: Mapping[str, Sequence[int]]) -> list[tuple[int, int]]:
    """Return for each NIC its request, by number, and the GPU that it is for; nothing where it may be any GPU's.

    A request that has something in common with GPUs is for these. So is one of as many as there are requests for GPUs,
    for the GPUs of the one at its place, where each GPU has as many then as any other, or one less.
    """
    every = list(dict.fromkeys(itertools.chain(*gpus.values())))
    pairs = list(gpus.values()) if len(gpus) == len(ask.requests) else []
    own: list[list[int]] = []
    is_tied = False
    for at, request in enumerate(ask.requests):
        names = dict.fromkeys(itertools.chain(*(one.requests for one in ask.alike if request.name in one.requests)))
        tied = list(dict.fromkeys(gpu for name in names for gpu in gpus.get(name, ())))
        is_tied = is_tied or bool(tied)
        own.append(tied or (list(pairs[at]) if pairs else every))
    if all(len(each) == len(every) for each in own):
        return []
    load, out = dict.fromkeys(every, 0), list[tuple[int, int]]()
    those_with_any_last = sorted(range(len(own)), key=lambda at: len(own[at]) == len(every))
    for at in those_with_any_last:
        for _ in range(ask.requests[at].count):
            gpu = min(own[at], key=load.__getitem__)
            load[gpu] += 1
            out.append((at, gpu))
    return sorted(out, key=lambda one: one[0]) if is_tied or max(load.values()) - min(load.values()) <= 1 else []


def _given(here: NodeNics, ask: NicAsk, columns: Sequence[int]) -> Chosen:
    every = iter(columns)
    return {
        request.name: tuple(here.addresses[column] for column in itertools.islice(every, request.count))
        for request in ask.requests
    }


def gpus_apart(
    picture: Picture,
    ask: NicAsk,
    node: str,
    free: Collection[int],
    gpus: int,
    *,
    alone: bool = True,
    deal: bool = False,
    taken: Collection[Place] = (),
    tries: Tries | None = None,
) -> frozenset[int]:
    """Return the numbers of GPUs of a node that can all have their NICs at the same time, of as many as there are.

    Where not all sets of them would do, as where some GPUs are to have a NIC more than others, those of one are
    returned. Fewer than are asked for are returned where no set would.

    Args:
        picture: The cluster.
        ask: What is asked for.
        node: The node.
        free: Numbers of its free GPUs.
        gpus: How many GPUs share what is asked for.
        alone: Whether that is one pod's; else others that ask for the same are to be beside it.
        deal: Whether one set of them is dealt out that leaves to others what these could use.
        taken: NICs that count as taken.
        tries: What is left of a search of which this is a part.
    """
    tries = tries or Tries()
    if not tries.may_begin(node):
        picture.nics.counts.looked(ask, node, ended=True)
        return frozenset()
    here = NodeNics(picture, ask, node, None, taken)
    own = [at for at, gpu in enumerate(here.machine.gpus) if gpu.index in free]
    costs, most = here.costs(own), -(-ask.count // gpus)
    ties = [[one for one in ask.alike if request.name in one.requests] for request in ask.requests]
    ties = [[one for one in each if set(one.requests) - _of_nics(ask)] for each in ties]

    def is_tied(column: int, gpu: Gpu) -> bool:
        return any(
            all(same(here.value(at, column, one.attribute), of_gpu(gpu, one.attribute)) for one in ties[at])
            for at, each in enumerate(here.fitting)
            if column in each
        )

    with_any = {
        column: frozenset(
            row
            for row, is_near in enumerate(near)
            if is_near and (not any(ties) or is_tied(column, here.machine.gpus[own[row]]))
        )
        for column, near in enumerate((costs < NEVER).T.tolist())
    }
    cheapest = [
        sum(sorted(int(costs[row, column]) for column, rows in with_any.items() if row in rows)[:most])
        for row in range(len(own))
    ]
    order = sorted(range(len(own)), key=lambda row: (cheapest[row], row))
    best: list[int] = []
    tries.begin(node, here.work)
    for usable in here.ways(_of_nics_alone(ask), here.fitting, tries, lambda _: 0, lambda: NEVER):
        kinds: Counter[tuple[frozenset[int], frozenset[int]]] = Counter()
        for column, rows in with_any.items():
            if requests := frozenset(at for at, each in enumerate(usable) if column in each):
                kinds[requests, rows] += 1
        counts = [request.count for request in ask.requests]
        found = served(kinds, counts, order, gpus, tries.more, alone=alone, deal=deal)
        best = max(best, found, key=len)
        if len(best) >= gpus:
            break
    # Where one set is offered of several and that one will not do, nobody has looked at the others.
    ended = tries.ended if len(best) < gpus else not _offers_all(ask, gpus)
    picture.nics.counts.looked(ask, node, ended=ended)
    return frozenset(here.machine.gpus[own[row]].index for row in best)


def _of_nics(ask: NicAsk) -> set[str]:
    return {request.name for request in ask.requests}


def _offers_all(ask: NicAsk, gpus: int) -> bool:
    """Return whether ``gpus_apart`` leaves out no set of GPUs that would do, where it finds any."""
    kinds = {(one.device_class, one.selectors, one.tolerations) for one in ask.requests}
    return (gpus == 1 or (len(kinds) == 1 and ask.count % gpus == 0)) and not ask.alike


def demands(ask: NicAsk) -> bool:
    """Return whether some GPUs may have to be left out because of the NICs that they can have."""
    return ask.near == NEAR_REQUIRED or any(set(one.requests) - _of_nics(ask) for one in ask.alike)


def refusal(picture: Picture, ask: NicAsk) -> NoNicsError:
    """Return why there is no place though there may be GPUs, in words that do not change with every event."""
    what, cause = wanted(ask), Cause.GPUS
    if (one := _impossible(picture, ask)) is not None:
        cause = Cause.NEVER
        stable = (
            f"{what}: no; no NIC of any node has the {one.attribute} of a GPU, so no claim is given devices by this "
            "constraint: remove it; the NICs are those nearest to the GPUs anyway"
        )
    elif picture.nics.counts.has_ended(ask):
        stable = f"{what}: none found beside GPUs that are free; not all were tried that the claim's requests allow"
    elif ask.near == NEAR_REQUIRED:
        stable = f"{what}: no; no eligible node has so many free ones near GPUs that are free"
    else:
        stable = f"{what}: no; no eligible node has so many free ones that fit beside GPUs that are free"
    return NoNicsError(stable, cause=cause)


def unfinished(ask: NicAsk, next_: str) -> NoNicsError:
    """Return why there is no place where it was not looked for everywhere, and what is next."""
    return NoNicsError(f"{wanted(ask)}: none so far beside GPUs that are free; {next_}", cause=Cause.GPUS)


def wanted(ask: NicAsk) -> str:
    """Return what is asked for, in words."""
    classes = ", ".join(dict.fromkeys(request.device_class for request in ask.requests))
    return f"{ask.count} NIC{'s' if ask.count > 1 else ''} of class {classes}"


def figures(picture: Picture, ask: NicAsk, nodes: Collection[str]) -> str:
    """Return how many NICs some of these nodes have and have left, those first that have most left."""
    left = sorted(nodes, key=lambda node: (-len(picture.nics.free(node)), node))
    return "; ".join(_figures(picture, ask, node) for node in left[:_TOLD])


def _figures(picture: Picture, ask: NicAsk, node: str) -> str:
    every, free = picture.nics.on(node), picture.nics.free(node)
    judge = picture.nics.counts.judge(ask.requests)
    fitting = [nic for nic in free if any(judge.of(nic))]
    tainted = sum(bool(nic.taints) for nic in free)
    told = f" ({tainted} of these tainted)" if tainted else ""
    text = f"{node}: {len(free)} of {len(every)} NICs free{told}, {len(fitting)} of them as asked for"
    pool = picture.inventory.pool(node)
    if not demands(ask) or pool is None:
        return text
    near = gpus_apart(picture, ask, node, [gpu.index for gpu in pool.machine.gpus], ask.count, alone=False)
    return f"{text}, one each for GPU {', '.join(map(str, sorted(near)))}" if near else f"{text}, for no GPU"


def _impossible(picture: Picture, ask: NicAsk) -> Alike | None:
    """Return what GPUs and NICs must have in common and have on no node, whoever holds them; None where they may."""
    for one in ask.alike:
        if not set(one.requests) - _of_nics(ask):
            continue
        for node in picture.inventory.pools():
            pool = picture.inventory.pool(node)
            has = {of_gpu(gpu, one.attribute) for gpu in pool.machine.gpus} if pool is not None else set()
            values = (nic.attributes.get(one.attribute) for nic in picture.nics.on(node))
            if any(value is not None and value in has for value in values):
                break
        else:
            return one
    return None
