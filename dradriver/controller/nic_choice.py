"""Which NICs a pod gets with its GPUs: free ones of their node, those nearest, different ones for different GPUs.

Pure, as ``decide`` is. GPUs come first: of a set that is chosen the NICs follow. Only where the pod says that they must
be near, or its claim that they must have something in common, are GPUs left out that can have no such NIC.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from dradriver.allocator.choice import nearest_nics
from dradriver.allocator.choice.nearest_nics import NEVER
from dradriver.allocator.request import NEAR_REQUIRED, NoPlaceError
from dradriver.api.nics import Alike, NicAsk, NicRequest
from dradriver.api.pins import Key
from dradriver.cluster.nic_devices import Nic
from dradriver.cluster.nic_ways import of_gpu, same
from dradriver.cluster.nics import Place
from dradriver.cluster.picture import Picture
from dradriver.topology.machine import Gpu, Machine

Gpus: TypeAlias = Mapping[str, Sequence[str]]
"""Uuids of the chosen GPUs by the claim's requests."""
Chosen: TypeAlias = dict[str, tuple[str, ...]]
"""PCI addresses of NICs by the claim's requests."""

_FAR: Final = 4096  # what a step more counts beside how many other functions of its card are in use
_MOST_WAYS: Final = 64  # of what NICs could have in common, that are tried
_TOLD: Final = 3  # nodes of which is said how many NICs they have


class NoNicsError(NoPlaceError):
    """There are GPUs, and not the NICs beside them."""

    reason = "NoNICs"


class _Node:
    """One node's NICs as somebody may have them.

    Attributes:
        machine: The node's.
        nics: The free ones.
        ways: How far each is from each GPU, by position: (NICs, GPUs).
        is_near: Whether a way is near.
    """

    def __init__(self, picture: Picture, node: str, besides: Key | None, taken: Collection[Place]) -> None:
        pool = picture.inventory.pool(node)
        assert pool is not None, "GPUs were chosen there"
        self.machine: Machine = pool.machine
        self.number = {uuid: at for at, uuid in enumerate(gpu.uuid for gpu in self.machine.gpus)}
        every, ways = picture.nics.on(node), picture.nics.ways(node)
        assert ways is not None, "its machine is known"
        self.nics = [nic for nic in picture.nics.free(node, besides) if (node, nic.address) not in taken]
        self.ways, self.is_near = [ways.of[nic.given] for nic in self.nics], ways.is_near
        free, used, self.ranks = {nic.given for nic in self.nics}, dict[str, int](), []
        for nic in every:
            if nic.parent and nic.given not in free:
                used[nic.parent] = used.get(nic.parent, 0) + 1
        for nic in self.nics:
            self.ranks.append(used.get(nic.parent, 0) if nic.parent else 0)
            if nic.parent:
                used[nic.parent] = used.get(nic.parent, 0) + 1

    def costs(self, gpus: Sequence[int], usable: Collection[int], *, near: bool) -> nearest_nics.Costs:
        """Return what each NIC costs for each of some GPUs: (GPUs, NICs)."""
        out = np.full((len(gpus), len(self.nics)), NEVER, dtype=np.int64)
        for column in usable:
            for row, gpu in enumerate(gpus):
                if not near or self.is_near(self.ways[column][gpu]):
                    out[row, column] = self.cost(column, gpu)
        return out

    def cost(self, column: int, gpu: int) -> int:
        """Return what one NIC costs for one GPU."""
        return self.ways[column][gpu] * _FAR + min(self.ranks[column], _FAR - 1)


def chosen(
    picture: Picture,
    ask: NicAsk,
    node: str,
    gpus: Gpus,
    *,
    besides: Key | None = None,
    taken: Collection[Place] = (),
) -> Chosen | None:
    """Return the NICs that go with chosen GPUs; None where there are not so many that are what is asked for.

    Args:
        picture: The cluster.
        ask: What is asked for.
        node: The GPUs' node.
        gpus: They.
        besides: A claim whose NICs count as free.
        taken: NICs that count as taken.
    """
    if not ask.requests:
        return {}
    here = _Node(picture, node, besides, taken)
    fitting = [{at for at, nic in enumerate(here.nics) if picture.nics.fits(nic, one)} for one in ask.requests]
    best: tuple[int, Chosen] | None = None
    for usable in _alike(here, ask, gpus, fitting):
        found = _assigned(here, ask, gpus, usable)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return None if best is None else best[1]


def _alike(here: _Node, ask: NicAsk, gpus: Gpus, fitting: Sequence[set[int]]) -> list[list[set[int]]]:
    """Return for each way in which NICs can have in common what they must which of them each request may have."""
    free: list[tuple[Alike, list[object]]] = []
    usable = [set(own) for own in fitting]
    for one in ask.alike:
        of_gpus = {
            of_gpu(here.machine.gpus[here.number[uuid]], one.attribute)
            for name in one.requests
            for uuid in gpus.get(name, ())
        }
        if of_gpus:
            if len(of_gpus) > 1 or None in of_gpus:
                return []
            _keep(here, ask, one, of_gpus.pop(), usable)
        else:
            free.append((one, sorted({v for nic in here.nics if (v := _value(nic, one)) is not None}, key=repr)))
    ways = itertools.islice(itertools.product(*(values for _, values in free)), _MOST_WAYS)
    out: list[list[set[int]]] = []
    for way in ways:
        own = [set(each) for each in usable]
        for (one, _), value in zip(free, way, strict=True):
            _keep(here, ask, one, value, own)
        out.append(own)
    return out


def _keep(here: _Node, ask: NicAsk, one: Alike, value: object, usable: list[set[int]]) -> None:
    for at, request in enumerate(ask.requests):
        if request.name in one.requests:
            usable[at] = {column for column in usable[at] if same(_value(here.nics[column], one), value)}


def _value(nic: Nic, one: Alike) -> object:
    return nic.attributes.get(one.attribute)


def _assigned(here: _Node, ask: NicAsk, gpus: Gpus, usable: list[set[int]]) -> tuple[int, Chosen] | None:
    """Return the least sum of the ways, and who gets what by it."""
    near = ask.near == NEAR_REQUIRED
    flat = list(dict.fromkeys(here.number[uuid] for own in gpus.values() for uuid in own))
    if all(own == usable[0] for own in usable):
        costs = here.costs(flat, usable[0], near=near)
        pairs = nearest_nics.evenly(costs, ask.count)
        if pairs is None:
            return None
        columns = [column for _, column in pairs]
        return sum(int(costs[row, column]) for row, column in pairs), _dealt(here, ask.requests, columns)
    rows = _slots(here, ask, gpus, flat)
    costs = np.concatenate([here.costs([gpu], usable[at], near=near) for at, gpu in rows])
    found = nearest_nics.assign(costs)
    if found is None:
        return None
    return sum(int(costs[row, column]) for row, column in enumerate(found)), _dealt(here, ask.requests, found)


def _slots(here: _Node, ask: NicAsk, gpus: Gpus, flat: Sequence[int]) -> list[tuple[int, int]]:
    """Return for each NIC that is wanted its request, by number, and the GPU that it is for, by position.

    Requests that ask for different NICs are for the GPUs in turn; one with something in common with GPUs, for these.
    """
    out: list[tuple[int, int]] = []
    turn = 0
    for at, request in enumerate(ask.requests):
        tied = [name for one in ask.alike if request.name in one.requests for name in one.requests if name in gpus]
        own = [here.number[uuid] for name in dict.fromkeys(tied) for uuid in gpus[name]]
        for number in range(request.count):
            out.append((at, own[number % len(own)] if own else flat[turn % len(flat)]))
            turn += 1
    return out


def _dealt(here: _Node, requests: Sequence[NicRequest], columns: Sequence[int]) -> Chosen:
    every = iter(columns)
    return {
        request.name: tuple(here.nics[column].address for column in itertools.islice(every, request.count))
        for request in requests
    }


def _is_tied(ask: NicAsk, nic: Nic, gpu: Gpu, request: NicRequest) -> bool:
    """Return whether a NIC of a request has in common with a GPU what it must."""
    ties = (one for one in ask.alike if request.name in one.requests and set(one.requests) - _of_nics(ask))
    return all(same(_value(nic, one), of_gpu(gpu, one.attribute)) for one in ties)


def gpus_apart(picture: Picture, ask: NicAsk, node: str, free: Collection[int], gpus: int) -> frozenset[int]:
    """Return the numbers of GPUs of a node that can all have their NICs at the same time, of as many as there are.

    Where some GPUs of a set are to have a NIC more than others, and too few can have that for all sets of them to do,
    those of one set are returned.

    Args:
        picture: The cluster.
        ask: What is asked for.
        node: The node.
        free: Numbers of its free GPUs.
        gpus: How many GPUs share what is asked for.
    """
    here, (each, some) = _Node(picture, node, None, ()), divmod(ask.count, gpus)
    most = each + bool(some)
    own = [at for at, gpu in enumerate(here.machine.gpus) if gpu.index in free]
    kinds: Counter[frozenset[int]] = Counter()
    costs: dict[int, list[int]] = {at: [] for at in own}
    for column, nic in enumerate(here.nics):
        fitting = [request for request in ask.requests if picture.nics.fits(nic, request)]
        if not fitting:
            continue
        kind = frozenset(
            at
            for at in own
            if (ask.near != NEAR_REQUIRED or here.is_near(here.ways[column][at]))
            and any(_is_tied(ask, nic, here.machine.gpus[at], request) for request in fitting)
        )
        kinds[kind] += 1
        for at in kind:
            costs[at].append(here.cost(column, at))
    nearest_first = sorted(own, key=lambda at: (sum(sorted(costs[at])[:most]), at))
    found = nearest_nics.served(kinds, dict.fromkeys(nearest_first, most))
    if 0 < some <= len(found) < gpus:
        wants = dict.fromkeys(found[:some], most) | dict.fromkeys(found[some:], each)
        found = nearest_nics.served(kinds, wants | {at: each for at in nearest_first if at not in wants})[:gpus]
    return frozenset(here.machine.gpus[at].index for at in found)


def _of_nics(ask: NicAsk) -> set[str]:
    return {request.name for request in ask.requests}


def demands(ask: NicAsk) -> bool:
    """Return whether some GPUs may have to be left out because of the NICs that they can have."""
    return ask.near == NEAR_REQUIRED or any(set(one.requests) - _of_nics(ask) for one in ask.alike)


def refusal(picture: Picture, ask: NicAsk) -> NoNicsError:
    """Return why there is no place though there may be GPUs, in words that do not change with every event."""
    what = wanted(ask)
    if (one := _impossible(picture, ask)) is not None:
        stable = (
            f"{what}: no; no NIC of any node has the {one.attribute} of a GPU, so no claim is given devices by this "
            "constraint: remove it; the NICs are those nearest to the GPUs anyway"
        )
    elif ask.near == NEAR_REQUIRED:
        stable = f"{what}: no; no eligible node has so many free ones near GPUs that are free"
    else:
        stable = f"{what}: no; no eligible node has so many free ones that fit beside GPUs that are free"
    return NoNicsError(stable)


def unfinished(ask: NicAsk, next_: str) -> NoNicsError:
    """Return why there is no place where it was not looked for everywhere, and what is next."""
    return NoNicsError(f"{wanted(ask)}: none so far beside GPUs that are free; {next_}")


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
    fitting = [nic for nic in free if any(picture.nics.fits(nic, request) for request in ask.requests)]
    tainted = sum(bool(nic.taints) for nic in free)
    told = f" ({tainted} of these tainted)" if tainted else ""
    text = f"{node}: {len(free)} of {len(every)} NICs free{told}, {len(fitting)} of them as asked for"
    pool = picture.inventory.pool(node)
    if not demands(ask) or pool is None:
        return text
    near = gpus_apart(picture, ask, node, [gpu.index for gpu in pool.machine.gpus], ask.count)
    return f"{text}, one each for GPU {', '.join(map(str, sorted(near)))}" if near else f"{text}, for no GPU"


def _impossible(picture: Picture, ask: NicAsk) -> Alike | None:
    """Return what GPUs and NICs must have in common and have on no node, whoever holds them; None where they may."""
    for one in ask.alike:
        if not set(one.requests) - _of_nics(ask):
            continue
        for node in picture.inventory.pools():
            pool = picture.inventory.pool(node)
            has = {of_gpu(gpu, one.attribute) for gpu in pool.machine.gpus} if pool is not None else set()
            if any(value is not None and value in has for value in (_value(nic, one) for nic in picture.nics.on(node))):
                break
        else:
            return one
    return None
