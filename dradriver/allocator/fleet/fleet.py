"""The fleet: a cluster's nodes as arrays, one group for each kind of machine.

The controller uses it to rank nodes for a pod. The figures of all sets of GPUs are computed before, so ranking only
looks them up.

A node has two indices. Its *slot* is its index in the arrays of its group. Its *row* is its index in arrays that a
caller passes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from typing import overload

import msgspec
import numpy as np

from dradriver.allocator.choice import fallback_criteria
from dradriver.allocator.choice.numbering import UnknownGpuError, listed, mask_of_gpus, numbers
from dradriver.allocator.fleet import node_order, part_ranking
from dradriver.allocator.fleet.candidates import Candidates
from dradriver.allocator.fleet.fleet_refusals import refusal
from dradriver.allocator.fleet.network_sites import Sites
from dradriver.allocator.fleet.node_group import NO_ROW, NodeGroup, Rules, group_key, without_uuids
from dradriver.allocator.parts.offers import WHOLE, Offer
from dradriver.allocator.request import Choice, Mig, Part, PartChoice, Request, Share, Whole, check_request
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology.machine import Machine
from dradriver.topology.network_levels import Location

Eligible = Collection[str] | Bools


class Fleet:
    """The cluster's nodes with their machines and free GPUs.

    A node takes 14 bytes and its name. All nodes of one kind share one ``Machine`` object, whose GPUs have no uuids.
    Many nodes have the same free GPUs. ``rank`` reads each node once, to count the different masks of free GPUs. The
    cost of all later steps depends on the number of different masks, not on the number of nodes.

    Attributes:
        sites: The locations of the nodes in the network, by number.
    """

    def __init__(self) -> None:
        self._groups: dict[int, NodeGroup] = {}  # by their numbers
        self._numbers: dict[Hashable, int] = {}  # of groups, by their keys
        self._slots: dict[str, tuple[int, int]] = {}  # of nodes: the number of the group, and the slot
        self.sites = Sites()
        self._name_ranks: dict[int, Ints] = {}  # by the group's number; empty after nodes came or went
        self._is_shared = False  # whether a copy has the same ``_numbers`` and ``_slots``

    @property
    def nodes(self) -> Collection[str]:
        """Return the names of all nodes of the fleet."""
        return self._slots.keys()

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the names of the fleet's network levels, nearest first: ``fabric``, ``leaf``, ``spine``, ``zone``."""
        return self.sites.levels

    @property
    def groups(self) -> Collection[NodeGroup]:
        """Return the node groups of the fleet.

        A group has all nodes with the same kind of machine.
        """
        return self._groups.values()

    def _at(self, name: str) -> tuple[NodeGroup, int]:
        """Return a node's group (nodes of one kind), and its index in the group's arrays.

        Raises:
            KeyError: The node is unknown.
        """
        number, slot = self._slots[name]
        return self._groups[number], slot

    def _unshare(self) -> None:
        """Copy the lists of nodes and groups that this fleet shares with its copies.

        It is called before a node or group is added or removed. The copies of the fleet keep the old lists.
        """
        if self._is_shared:
            self._numbers, self._slots, self._is_shared = dict(self._numbers), dict(self._slots), False

    def free(self, name: str) -> frozenset[int]:
        """Return the free GPUs of a node of the fleet, by the machine's own numbers.

        Raises:
            KeyError: The node is unknown.
        """
        group, slot = self._at(name)
        return frozenset(numbers(group.machine, positions_of(group.free(slot))))

    def set_node(self, name: str, machine: Machine, free: Collection[int], row: int | None = None) -> None:
        """Add a node to the fleet, or update its machine and its free GPUs.

        Args:
            name: The node's name.
            machine: Its machine.
            free: The machine's own numbers of its free GPUs.
            row: The index of the node in the arrays that the caller passes to ``rank`` and others, from 0. None keeps
                the row of an existing node.

        Raises:
            MachineTooLargeError: More than 16 GPUs.
            UnknownGpuError: ``free`` names a GPU that the machine does not have.
        """
        # Nodes are grouped by kind of machine: without uuids, equal machines are one kind.
        mask = mask_of_gpus(machine, free)
        machine_kind = without_uuids(machine)
        current_place = self._at(name) if name in self._slots else None

        # A group also has rules: how single GPUs are shared. A node keeps the rules of GPUs that it still has.
        gpu_numbers = {gpu.index for gpu in machine.gpus}
        rules_before = () if current_place is None else current_place[0].rules
        rules = tuple((number, rule) for number, rule in rules_before if number in gpu_numbers)
        self._put(name, self._group(machine_kind, rules))
        group, slot = self._at(name)
        group.set_free(slot, mask)
        if row is not None:
            group.set_row(slot, row)

    def _group(self, machine: Machine, rules: Rules) -> NodeGroup:
        """Return the node group for this kind of machine and these rules for shares.

        ``rules`` say how large the shares of each GPU may be (``ShareRule``). If there is no such group, make one.
        """
        key = group_key(machine, rules)
        if key not in self._numbers:
            self._unshare()
            group = NodeGroup(tables_of(machine), machine, key=key, rules=rules)
            self._numbers[key] = group.number
            self._groups[group.number] = group
        return self._groups[self._numbers[key]]

    def _put(self, name: str, group: NodeGroup) -> None:
        """Put a node into a group; remove it from its former group.

        For a GPU that the machines of both groups have, two things do not change: its fractions in use, and which
        fractions it is offered as (``Offer``).
        """
        row, site, offer = NO_ROW, 0, WHOLE
        fractions_by_gpu: dict[int, Sequence[Part]] = {}
        if name in self._slots:
            group_before, slot_before = self._at(name)
            if group_before is group:
                return
            row, site = group_before.row_and_site(slot_before)
            offer, fractions_by_gpu = group_before.offer_and_parts(slot_before)
            self.remove(name)
        self._unshare()
        slot = group.add(name, row=row, site=site)
        self._slots[name] = group.number, slot
        self._name_ranks = {}

        # What policies offer of the GPUs, and the fractions on them, of the GPUs that the machine still has.
        gpu_numbers = {gpu.index for gpu in group.machine.gpus}
        kept_offer = Offer(
            shared=offer.shared & gpu_numbers,
            sliced=offer.sliced & gpu_numbers,
            parts_only=offer.parts_only & gpu_numbers,
            tenants=tuple((number, tenant) for number, tenant in offer.tenants if number in gpu_numbers),
        )
        group.set_offer(slot, kept_offer)
        kept_fractions = {number: fractions for number, fractions in fractions_by_gpu.items() if number in gpu_numbers}
        group.set_parts(slot, kept_fractions)

    def set_free(self, name: str, free: Collection[int]) -> None:
        """Update the free GPUs of a node of the fleet.

        Raises:
            KeyError: The node is unknown.
            UnknownGpuError: ``free`` names a GPU that the machine does not have.
        """
        group, slot = self._at(name)
        try:
            mask = group.mask_of(free)
        except KeyError as error:
            has = listed(gpu.index for gpu in group.machine.gpus) or "none"
            raise UnknownGpuError(f"node {name!r} has no GPU {error.args[0]}; it has {has}") from None
        group.set_free(slot, mask)

    def copied(self, names: Collection[str]) -> Fleet:
        """Return a copy of the fleet, for simulations.

        Only the nodes in ``names`` may be changed in the copy. The copy can share its data about other nodes with this
        fleet.
        """
        new = Fleet()
        changed = {self._slots[name][0] for name in names}
        new._groups = self._groups | {number: self._groups[number].copied() for number in changed}
        # Indices and ranks depend on which nodes there are: they are copied when that changes.
        new._numbers, new._slots, new._name_ranks = self._numbers, self._slots, self._name_ranks
        self._is_shared = new._is_shared = True
        new.sites = self.sites
        return new

    def narrowed(self, among: Mapping[str, Set[int]]) -> Fleet:
        """Return a copy of the fleet in which some nodes offer fewer GPUs.

        ``among`` has, by node, the numbers of the GPUs that the node offers in the copy. All other nodes are unchanged.
        Unknown nodes in ``among`` are ignored.

        Raises:
            KeyError: A node does not have one of its GPU numbers.
        """
        new = self.copied(among.keys() & self._slots.keys())
        for name in among.keys() & self._slots.keys():
            group, slot = new._at(name)
            group.narrow(slot, group.mask_of(among[name]))
        return new

    def set_levels(self, levels: Sequence[str], gbps_of: Mapping[str, float] | None = None) -> None:
        """Set the names and bandwidths of the fleet's network levels.

        The locations of all nodes become unknown and must be set again.

        Args:
            levels: The names of the levels, nearest first, without ``node`` and ``cluster``.
            gbps_of: By level (also ``cluster``), the network bandwidth of each node for traffic within that level, one
                direction, GB/s. If the narrowest level has no entry, its bandwidth is that of the node's NICs. If a
                wider level has no entry, its bandwidth is unknown.
        """
        self.sites = Sites(levels, gbps_of)
        for group in self.groups:
            group.sites()[:] = 0

    def set_location(self, name: str, location: Location) -> None:
        """Set where a node is in the network, such as its rack. Gangs need this.

        Raises:
            KeyError: The node is unknown.
        """
        group, slot = self._at(name)
        group.set_site(slot, self.sites.number(location))

    def location(self, name: str) -> Location:
        """Return where a node of the fleet is in the network, such as its rack.

        Raises:
            KeyError: The node is unknown.
        """
        group, slot = self._at(name)
        return self.sites.locations[int(group.sites()[slot])]

    def remove(self, name: str) -> None:
        """Remove the node with this name from the fleet; do nothing if it is unknown."""
        if name not in self._slots:
            return
        self._unshare()
        number, slot = self._slots.pop(name)
        group = self._groups[number]
        moved = group.drop(slot)
        if moved:
            self._slots[moved] = number, slot
        if not group.names:
            del self._groups[number]
            del self._numbers[group.key]
        self._name_ranks = {}

    def set_offer(self, name: str, offer: Offer) -> None:
        """Set which GPUs of a node of the fleet can be used as fractions (shares or MIG slices).

        Raises:
            KeyError: The node is unknown.
            UnknownGpuError: The offer names a GPU that the machine does not have.
        """
        group, slot = self._at(name)
        theirs = {number for number, _ in offer.tenants}
        if some := offer.shared | offer.sliced | offer.parts_only | theirs:
            mask_of_gpus(group.machine, some)
        if offer.rules != group.rules:
            mask_of_gpus(group.machine, {number for number, _ in offer.rules})
            unheld = group.unheld(slot)
            self._put(name, self._group(group.machine, offer.rules))
            group, slot = self._at(name)
            group.set_free(slot, unheld)
        group.set_offer(slot, offer)

    def set_parts(self, name: str, parts: Mapping[int, Sequence[Part]]) -> None:
        """Set the fractions (shares or MIG slices) that are in use on the GPUs of a node of the fleet.

        A GPU with a fraction is not free for requests for whole GPUs, even if ``set_free`` lists it.

        Raises:
            KeyError: The node is unknown.
            UnknownGpuError: ``parts`` names a GPU that the machine does not have.
        """
        group, slot = self._at(name)
        if parts:
            mask_of_gpus(group.machine, parts)
        group.set_parts(slot, parts)

    @overload
    def rank(
        self, request: Whole, *, eligible: Eligible | None = None, limit: int = 8, explain: bool = True, tenant: int = 0
    ) -> list[Choice]: ...

    @overload
    def rank(
        self,
        request: Share | Mig,
        *,
        eligible: Eligible | None = None,
        limit: int = 8,
        explain: bool = True,
        tenant: int = 0,
    ) -> list[PartChoice]: ...

    def rank(
        self,
        request: Request,
        *,
        eligible: Eligible | None = None,
        limit: int = 8,
        explain: bool = True,
        tenant: int = 0,
    ) -> list[Choice] | list[PartChoice]:
        """Return the best nodes of the fleet for a request, each with its best GPU set, best first.

        Nodes are ordered by these criteria:

        1. the fallback level that they reach: the first preferred constraint that they can meet
        2. whether they reach it without GPUs that can be shared or split by MIG
        3. predicted bandwidth
        4. the request's strategy (``node_order``; for fractions ``part_nodes``)
        5. name

        Args:
            request: The GPUs that a pod requests.
            eligible: The nodes that may be taken, None for all. Either names, of which unknown ones are ignored, or an
                array of bool with one entry for each row that ``set_node`` was given. A node beyond the array's end, or
                without a row, is not eligible.
            limit: The largest number of choices to return.
            explain: Whether a refusal's message also names the nearest thing that is possible. If not, a refusal is as
                cheap as an answer, and its message does not change when GPUs are allocated or released.
            tenant: The number of the tenant that requests fractions; 0 for a tenant that has no fractions anywhere.

        Raises:
            NoPlaceError: No node has a fitting set.
        """
        if not isinstance(request, Whole):
            return part_ranking.rank(self._nodes(eligible), request, limit=limit, explain=explain, tenant=tenant)
        check_request(request)
        candidates = self.candidates(request, eligible)
        candidates_in_order = [candidates]

        # GPUs that can be shared or split come last on each fallback level: fractions need them.
        if self.has_parts:
            candidates_in_order.insert(0, self.candidates(request, eligible, is_spared=True))
        choices: dict[str, Choice] = {}

        # From the level with the first preference down to what is required alone. A node counts on the best level only.
        higher_levels: list[Criteria] = []
        for fallback_level in fallback_criteria.fallback_levels(request):
            # Lists of equally good nodes, the best list first: names decide inside a list.
            ties = (
                tie
                for nodes in candidates_in_order
                for tie in node_order.ties(nodes, request, fallback_level=fallback_level, passed=higher_levels)
            )
            for tie in ties:
                for name, group, mask in node_order.named(tie, limit):
                    if name not in choices and len(choices) < limit:
                        choices[name] = msgspec.structs.replace(group.describe(mask, request), node=name)
                if len(choices) >= limit:
                    return list(choices.values())
            higher_levels.append(fallback_level)
        if not choices:
            raise refusal(self.groups, candidates, request, explain=explain)
        return list(choices.values())

    @property
    def has_parts(self) -> bool:
        """Return whether some node of the fleet offers GPUs as fractions (shares or MIG slices)."""
        all_rooms = (group.rooms for group in self.groups if group.rooms is not None)
        return any(rooms.offered(sliced=False) or rooms.offered(sliced=True) for rooms in all_rooms)

    def candidates(
        self, request: Whole, eligible: Eligible | None = None, *, is_spared: bool = False
    ) -> list[Candidates]:
        """Return the nodes that a request may be placed on, and the free GPUs that it can use there.

        The list has one entry for each kind of machine.

        Args:
            request: The GPUs that a pod requests.
            eligible: The nodes that may be taken: names, or a bool for each row (a node's index); None for all.
            is_spared: Whether GPUs that can be used as fractions are left out.
        """
        candidates = [
            Candidates(group, request=request, eligible=slots, free=group.spared_masks() if is_spared else None)
            for group, slots in self._nodes(eligible).items()
        ]
        return [each for each in candidates if len(each.masks)]

    def _nodes(self, eligible: Eligible | None) -> dict[NodeGroup, Bools | None]:
        """Return for each group of nodes which of them may be taken, as bools.

        There is one bool for each slot (index of a node in its group); None if all nodes of the group may be taken.
        ``eligible`` are the nodes that may be taken: names, or a bool for each row of the caller's arrays.
        """
        if eligible is None:
            return dict.fromkeys(self.groups)
        if isinstance(eligible, np.ndarray):
            return {group: group.at_rows(eligible) for group in self.groups}
        return self._named_ones(eligible)

    def name_ranks(self, candidates: list[Candidates], slots: list[Ints]) -> Ints:
        """Return the rank of each node's name: its place in the sorted names. (nodes,), int64.

        Searches for gangs order nodes by the rank, so that they need not compare names.

        Args:
            candidates: One entry for each group with nodes to rank.
            slots: For each entry of ``candidates``, the slots of the nodes to rank in its group. The result lists the
                nodes group after group.
        """
        ranks = self._ranks()
        name_ranks = [ranks[each.group.number][own_slots] for each, own_slots in zip(candidates, slots, strict=True)]
        return np.concatenate([*name_ranks, np.zeros(0, dtype=np.int64)])

    def name_rank(self, name: str) -> int | None:
        """Return the position of a node's name in the sorted names of the fleet.

        The result is None for an unknown node.
        """
        at = self._slots.get(name)
        return None if at is None else int(self._ranks()[at[0]][at[1]])

    def sites_by_name(self) -> Ints:
        """Return the number of each node's location in the network: (nodes,), int64.

        The nodes are in the order of their names.
        """
        numbers = np.zeros(len(self._slots), dtype=np.int64)
        for number, ranks in self._ranks().items():
            numbers[ranks] = self._groups[number].sites()
        return numbers

    def _ranks(self) -> dict[int, Ints]:
        """Return the rank of each node's name: its place in the sorted names of the fleet.

        The key is the number of the node's group, the index in the array is the node's slot.
        """
        if not self._name_ranks:
            order = {name: at for at, name in enumerate(sorted(self._slots))}
            self._name_ranks |= {
                number: np.array([order[name] for name in group.names], dtype=np.int64)
                for number, group in self._groups.items()
            }
        return self._name_ranks

    def _named_ones(self, names: Collection[str]) -> dict[NodeGroup, Bools | None]:
        chosen: dict[NodeGroup, Bools] = {}
        for name in names:
            if name in self._slots:
                group, slot = self._at(name)
                if group not in chosen:
                    chosen[group] = np.zeros(len(group.names), dtype=np.bool_)
                chosen[group][slot] = True
        return dict(chosen)
