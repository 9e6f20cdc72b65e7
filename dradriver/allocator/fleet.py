"""Which node of a cluster: free masks of thousands of nodes as arrays, one per kind, ranked by table look-ups."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from dradriver.allocator import demands, ordering, rings
from dradriver.allocator.alike import Alike, Looked, kind_of
from dradriver.allocator.blueprints import Blueprints, Kept
from dradriver.allocator.choose import check, describe
from dradriver.allocator.network import Sites
from dradriver.allocator.numbering import mask_of_gpus, numbers
from dradriver.allocator.ordering import Group
from dradriver.allocator.request import Choice, NoPlaceError, Request
from dradriver.allocator.subsets import Bools, Ints
from dradriver.allocator.tables import of_machine
from dradriver.topology.levels import Location
from dradriver.topology.machine import Machine


class NodeMask:
    """Some of a fleet's nodes, looked up once for many requests; see ``Fleet.mask``."""

    def __init__(self, chosen: Mapping[int, Bools], *, version: int) -> None:
        self.chosen = chosen
        self.version = version


class Fleet:
    """The cluster's nodes with their machines and free GPUs.

    Per node 8 bytes of masks and location, its name and its GPUs' uuids; machines and tables are shared by alike ones.
    ``rank`` looks at each node once, in a count of the free masks that occur; what follows depends on the number of
    different masks, not of nodes.

    Attributes:
        sites: The locations of the nodes.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[object, ...], Alike] = {}
        self._slots: dict[str, tuple[Alike, int]] = {}
        self._kept: dict[str, Kept] = {}
        self._blueprints = Blueprints()
        self._version = 0  # of who is there
        self.sites = Sites()
        self._ranks: dict[int, Ints] = {}
        self._ranked = -1  # the version that the ranks of names are of

    @property
    def nodes(self) -> Collection[str]:
        """Names of all nodes."""
        return self._slots.keys()

    def machine(self, name: str) -> Machine:
        """The node's machine; KeyError for an unknown node."""
        return self._kept[name].machine()

    def shared_machine(self, name: str) -> Machine:
        """The same without uuids, which costs nothing: one object for all alike nodes."""
        return self._kept[name].blueprint

    def free(self, name: str) -> frozenset[int]:
        """The node's free GPUs, promised ones included, by the machine's own numbers; KeyError for an unknown node."""
        alike, slot = self._slots[name]
        return frozenset(numbers(self.shared_machine(name), rings.positions(alike.free(slot))))

    def promised(self, name: str) -> frozenset[int]:
        """The node's promised GPUs, by the machine's own numbers; KeyError for an unknown node."""
        alike, slot = self._slots[name]
        return frozenset(numbers(self.shared_machine(name), rings.positions(alike.promised(slot))))

    def set_node(self, name: str, machine: Machine, free: Collection[int]) -> None:
        """Insert a node, or update its machine and its free GPUs.

        Raises:
            MachineTooLargeError: More than 16 GPUs.
            UnknownGpuError: ``free`` names a GPU that the machine does not have.
        """
        mask = mask_of_gpus(machine, free)
        if self._kept.get(name) != self._blueprints.of(machine):
            tables = of_machine(self._blueprints.of(machine).blueprint)
            self.remove(name)
            kind = kind_of(machine, tables)
            self._kept[name] = self._blueprints.keep(machine)
            alike = self._kinds.get(kind)
            if alike is None:
                alike = self._kinds[kind] = Alike(tables, self.shared_machine(name).gpus)
            self._slots[name] = alike, alike.add(name, mask)
            self._version += 1
            return
        alike, slot = self._slots[name]
        alike.set_free(slot, mask)

    def set_free(self, name: str, free: Collection[int]) -> None:
        """Update a node's free GPUs; KeyError for an unknown node.

        Raises:
            UnknownGpuError: ``free`` names a GPU that the machine does not have.
        """
        alike, slot = self._slots[name]
        alike.set_free(slot, mask_of_gpus(self.shared_machine(name), free))

    def set_promised(self, name: str, gpus: Collection[int]) -> None:
        """Update a node's promised GPUs, which no later request gets; KeyError for an unknown node.

        Raises:
            UnknownGpuError: ``gpus`` names a GPU that the machine does not have.
        """
        alike, slot = self._slots[name]
        alike.set_promised(slot, mask_of_gpus(self.shared_machine(name), gpus))

    def set_location(self, name: str, location: Location) -> None:
        """Say where a node stands in the network, for gangs; KeyError for an unknown node."""
        alike, slot = self._slots[name]
        alike.set_site(slot, self.sites.number(location))

    def location(self, name: str) -> Location:
        """Where a node stands; KeyError for an unknown node."""
        alike, slot = self._slots[name]
        return self.sites.locations[int(alike.sites()[slot])]

    def remove(self, name: str) -> None:
        """Forget a node; an unknown one is no error."""
        found = self._slots.pop(name, None)
        if found is None:
            return
        kept = self._kept.pop(name)
        self._blueprints.drop(kept)
        alike, slot = found
        moved = alike.drop(slot)
        if moved:
            self._slots[moved] = alike, slot
        if not alike.names:
            del self._kinds[kind_of(kept.blueprint, alike.tables)]
        self._version += 1

    def mask(self, names: Collection[str]) -> NodeMask:
        """Some nodes in the form that ``rank`` takes without looking names up; good until nodes come or go.

        Unknown names are passed over.
        """
        chosen: dict[int, Bools] = {}
        for name in names:
            found = self._slots.get(name)
            if found is not None:
                alike, slot = found
                if id(alike) not in chosen:
                    chosen[id(alike)] = np.zeros(len(alike.names), dtype=np.bool_)
                chosen[id(alike)][slot] = True
        return NodeMask(chosen, version=self._version)

    def rank(
        self, request: Request, *, eligible: Collection[str] | NodeMask | None = None, limit: int = 8
    ) -> list[Choice]:
        """The best set on each of the best nodes, best first; one a node, at most ``limit``.

        Nodes are ordered by the rung of the preferred ladder that they reach, then by predicted bandwidth, then by
        the request's strategy, then by name. See ``ordering`` for the strategies.

        Args:
            request: What is wanted.
            eligible: The nodes that may be looked at; None for all. Unknown names are passed over.
            limit: Most choices to return.

        Raises:
            NoPlaceError: No node has a fitting set; the message has the reason and the nearest thing that is possible.
            StaleMaskError: ``eligible`` is a mask from before nodes came or went.
        """
        check(request)
        looked = self.look(request, eligible)
        choices: list[Choice] = []
        passed: list[demands.Demand] = []
        for rung in demands.rungs(request):
            for group in ordering.ordered(looked, request, rung=rung, passed=passed):
                choices += self._named(group, request, limit - len(choices))
                if len(choices) >= limit:
                    return choices
            passed.append(rung)
        if not choices:
            raise NoPlaceError(ordering.refusal(looked, request, empty=not self._slots))
        return choices

    def look(self, request: Request, eligible: Collection[str] | NodeMask | None = None) -> list[Looked]:
        """The nodes that may be looked at, by kind, with the masks that the request could use of them.

        Raises:
            StaleMaskError: ``eligible`` is a mask from before nodes came or went.
        """
        if eligible is None:
            return [Looked(alike, request=request, eligible=None) for alike in self._kinds.values()]
        if not isinstance(eligible, NodeMask):
            eligible = self.mask(eligible)
        elif eligible.version != self._version:
            raise ordering.StaleMaskError("nodes came or went since the mask was made; make it anew")
        return [
            Looked(alike, request=request, eligible=eligible.chosen[id(alike)])
            for alike in self._kinds.values()
            if id(alike) in eligible.chosen
        ]

    def name_ranks(self, looked: list[Looked], slots: list[Ints]) -> Ints:
        """Place of each node's name among all names, for the slots of each kind in turn: (nodes,), int64."""
        if self._ranked != self._version:
            order = {name: at for at, name in enumerate(sorted(self._slots))}
            self._ranks = {
                id(alike): np.array([order[name] for name in alike.names], dtype=np.int64)
                for alike in self._kinds.values()
            }
            self._ranked = self._version
        every = [self._ranks[id(each.alike)][own] for each, own in zip(looked, slots, strict=True)]
        return np.concatenate([*every, np.zeros(0, dtype=np.int64)])

    def _named(self, group: Group, request: Request, limit: int) -> list[Choice]:
        """Choices on the nodes of equally good masks, by name."""
        names = [(name, place.taken) for place in group for name in place.looked.first_names(place.mask, limit)]
        return [
            describe(self.shared_machine(name), self._slots[name][0].tables, taken, request=request, node=name)
            for name, taken in sorted(names)[:limit]
        ]
