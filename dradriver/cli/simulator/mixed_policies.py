"""Policies for mixed requests (whole GPUs, shares, MIG slices): the driver's allocator, and a scheduler without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from dradriver.allocator import Amount, Fleet, MigPart, NoPlaceError, Request, Share, SharePart, Whole
from dradriver.allocator.parts.layouts import layout_of
from dradriver.allocator.request import Part
from dradriver.cli.plan_parts import offered
from dradriver.topology.machine import Gpu, Machine

_NOWHERE: Final = -1  # the start of a slice that is allocated and cannot be made


class Taken(msgspec.Struct, frozen=True):
    """The GPUs of a node, or the fraction of one GPU, that a request got.

    If ``served`` is false, the request occupies them but cannot use them.
    """

    node: int
    gpus: tuple[int, ...]
    part: Part | None = None
    served: bool = True


class Policy(Protocol):
    """A policy that places mixed requests and keeps account of the GPUs that it gave."""

    def place(self, request: Request) -> Taken | None:
        """Take a place for a request of whole GPUs or a fraction, and return it; None without a place."""

    def give_back(self, taken: Taken) -> None:
        """Release the GPUs that a simulated request got."""

    def empty(self) -> Sequence[Sequence[int]]:
        """Return for each simulated node the numbers of its GPUs that no request occupies."""


class Ours:
    """The policy of the driver's own allocator, over all simulated nodes."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._fleet = Fleet()
        self._names = [f"node-{number:05d}" for number in range(len(machines))]
        self._number = {name: number for number, name in enumerate(self._names)}
        self._held: list[set[int]] = [set() for _ in machines]
        self._parts: list[list[Part]] = [[] for _ in machines]
        self._every = [frozenset(gpu.index for gpu in machine.gpus) for machine in machines]
        for name, machine, every in zip(self._names, machines, self._every, strict=True):
            as_it_is, offer = offered(machine)
            self._fleet.set_node(name, as_it_is, every)
            self._fleet.set_offer(name, offer)

    def place(self, request: Request) -> Taken | None:
        """Take a place for a mixed request by the driver's own policy; None without a place."""
        try:
            if isinstance(request, Whole):
                choice = self._fleet.rank(request, limit=1, explain=False)[0]
                taken = Taken(self._number[choice.node], choice.gpus)
            else:
                found = self._fleet.rank(request, limit=1, explain=False)[0]
                ((part,),) = found.containers
                taken = Taken(self._number[found.node], found.gpus, part)
        except NoPlaceError:
            return None
        if taken.part is None:
            self._held[taken.node] |= set(taken.gpus)
        else:
            self._parts[taken.node].append(taken.part)
        self._tell(taken)
        return taken

    def give_back(self, taken: Taken) -> None:
        """Release the GPUs that the driver's allocator gave a mixed request."""
        if taken.part is None:
            self._held[taken.node] -= set(taken.gpus)
        else:
            self._parts[taken.node].remove(taken.part)
        self._tell(taken)

    def _tell(self, taken: Taken) -> None:
        name = self._names[taken.node]
        if taken.part is None:
            self._fleet.set_free(name, self._every[taken.node] - self._held[taken.node])
            return
        on: dict[int, list[Part]] = {}
        for part in self._parts[taken.node]:
            on.setdefault(part.gpu, []).append(part)
        self._fleet.set_parts(name, on)

    def empty(self) -> Sequence[Sequence[int]]:
        """Return for each simulated node the numbers of its GPUs that no request occupies."""
        return [sorted(self._fleet.free(name)) for name in self._names]


class _Gpu:
    """One GPU, as a policy other than the driver's allocator accounts it."""

    def __init__(self, gpu: Gpu) -> None:
        self.memory_mib = gpu.memory_mib
        self.profiles = {profile.name: profile for profile in gpu.profiles}
        self.sliced = gpu.mig is not None
        self.there = bool(gpu.mig)
        self.whole = False
        self.parts: list[Part] = []

    @property
    def empty(self) -> bool:
        return not self.whole and not self.parts and not self.sliced

    def share(self, number: int, amount: Amount) -> Part | None:
        """Return a share of the size ``amount`` on the simulated GPU.

        None if the GPU has no room for it. ``number`` is the GPU's number on its node.
        """
        own = amount.of(self.memory_mib)
        shares = [part.amount for part in self.parts if isinstance(part, SharePart)]
        if self.whole or self.sliced or len(shares) < len(self.parts):
            return None
        cores = sum(one.cores for one in shares) + own.cores
        memory = sum(one.memory_mib for one in shares) + own.memory_mib
        return SharePart(gpu=number, amount=own) if cores <= 100 and memory <= self.memory_mib else None

    def slice(self, number: int, name: str, *, by_counts: bool = False) -> MigPart | None:
        """Return the MIG slice of profile ``name`` that has room on the simulated GPU, or None.

        ``number`` is the GPU's number on its node. The slice gets the highest free start. With ``by_counts``, it gets
        the start that leaves most room for other profiles. If then enough slices are free but no start is possible, its
        start is ``_NOWHERE``.
        """
        profile = self.profiles.get(name)
        if profile is None or not self.counts(name):
            return None
        slices = [part for part in self.parts if isinstance(part, MigPart) and part.start != _NOWHERE]
        if by_counts:
            layout = layout_of(tuple(self.profiles.values()))
            assert layout is not None, "it has profiles"
            state = layout.state((part.profile, part.start) for part in slices)
            start = int(layout.start[state, layout.number[name]])
            return MigPart(gpu=number, profile=name, start=start if start >= 0 else _NOWHERE, size=profile.size)
        for start in reversed(profile.starts):
            if all(part.start + part.size <= start or start + profile.size <= part.start for part in slices):
                return MigPart(gpu=number, profile=name, start=start, size=profile.size)
        return None

    def counts(self, name: str) -> bool:
        """Return whether the GPU has enough free slices for the MIG profile ``name``.

        Memory and compute slices are counted, regardless of their positions.
        """
        slices = [part for part in self.parts if isinstance(part, MigPart)]
        if name not in self.profiles or self.whole or len(slices) < len(self.parts):
            return False
        if self.there:
            return True
        taken = [self.profiles[part.profile] for part in slices] + [self.profiles[name]]
        return sum(one.size for one in taken) <= max(one.size for one in self.profiles.values()) and (
            sum(one.compute for one in taken) <= max(one.compute for one in self.profiles.values())
        )


class FirstFit:
    """A scheduler without the driver's allocator: it takes the first devices in the list that fit.

    Nodes are tried by name, or the least allocated first, as kube-scheduler's own scoring does. On a node the first GPU
    with room is taken.

    With ``by_counts`` a GPU has room if enough of its slices are free, wherever they are. If MIG instances are created
    on demand, the scheduler knows no more than this count. The node agent then puts the slice where it leaves most
    room. If the free slices do not form a placement, no instance can be created: the request occupies its slices, and
    is not served.
    """

    def __init__(self, machines: Sequence[Machine], *, least_allocated: bool = False, by_counts: bool = False) -> None:
        self._nodes = [{gpu.index: _Gpu(gpu) for gpu in offered(machine)[0].gpus} for machine in machines]
        self._load = [0.0] * len(machines)
        self._least_allocated = least_allocated
        self._by_counts = by_counts

    def place(self, request: Request) -> Taken | None:
        """Take a place for a mixed request by the first-fit policy (a scheduler alone); None without a place."""
        order = range(len(self._nodes))
        for node in sorted(order, key=self._load.__getitem__) if self._least_allocated else order:
            taken = self._place_on_node(node, request)
            if taken is not None:
                self._load[node] += _size(taken)
                return taken
        return None

    def _place_on_node(self, node: int, request: Request) -> Taken | None:
        gpus = self._nodes[node]
        if isinstance(request, Whole):
            free = tuple(number for number, gpu in gpus.items() if gpu.empty)[: request.gpus]
            if len(free) < request.gpus:
                return None
            for number in free:
                gpus[number].whole = True
            return Taken(node, free)
        for number, gpu in gpus.items():
            part = (
                gpu.share(number, request.amounts[0])
                if isinstance(request, Share)
                else gpu.slice(number, request.profiles[0][0], by_counts=self._by_counts)
            )
            if part is not None:
                # With ``by_counts`` the scheduler may give a slice that has no placement: the request is not served.
                gpu.parts.append(part)
                served = not isinstance(part, MigPart) or part.start != _NOWHERE
                return Taken(node, (number,), part, served=served)
        return None

    def give_back(self, taken: Taken) -> None:
        """Release the GPUs that the first-fit policy gave a simulated request."""
        self._load[taken.node] -= _size(taken)
        for number in taken.gpus:
            gpu = self._nodes[taken.node][number]
            if taken.part is None:
                gpu.whole = False
            else:
                gpu.parts.remove(taken.part)

    def empty(self) -> Sequence[Sequence[int]]:
        """Return for each simulated node the numbers of its GPUs that no request occupies."""
        return [[number for number, gpu in gpus.items() if gpu.empty] for gpus in self._nodes]


def _size(taken: Taken) -> float:
    match taken.part:
        case SharePart():
            return taken.part.amount.cores / 100
        case MigPart():
            return taken.part.size / 8
        case None:
            return float(len(taken.gpus))


POLICIES: Final[dict[str, Callable[[Sequence[Machine]], Policy]]] = {
    "slices by count": lambda machines: FirstFit(machines, by_counts=True),
    "least allocated": lambda machines: FirstFit(machines, least_allocated=True),
    "first fit": FirstFit,
    "ours": Ours,
}
