"""NICs that other drivers allocate: slices say which exist, and claims say which are in use.

A NIC is in use while it is allocated to a claim, or while a claim of this driver is pinned to it. Slices do not tell
whether a NIC is in use: a driver may still publish a NIC that is in a pod, or stop publishing it. No NIC slice is read
before a pod requests NICs.

A claim is *pinned* to NICs that the controller chose for it. A *pool* is the slices in which a driver publishes the
NICs of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from dradriver.allocator.request import NoPlaceError
from dradriver.api.claims.pins import Key
from dradriver.api.slices import resource_slices
from dradriver.api.vocabulary import simple_cel
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.nic_requests import DRIVERS, Given, NicAsk, NicRequest
from dradriver.api.vocabulary.simple_cel import Term
from dradriver.cluster.gpus.taint_rules import TaintRule, TaintRules
from dradriver.cluster.nics.nic_counts import Counts
from dradriver.cluster.nics.nic_devices import Nic, NicSlice
from dradriver.cluster.nics.nic_distances import Ways
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.event import Event
from dradriver.kube.reflector import Change
from dradriver.reason import Cause, Reason
from dradriver.topology.machine import Machine

Place = tuple[str, str]
"""A NIC by where it is: node and PCI address."""


class Nics:
    """All NICs by node, and their allocations.

    Attributes:
        asked: Whether any pod has requested NICs. Before that no slices are read.
        first_requested: Is called when the first pod requests NICs.
        known: The drivers whose slices have all been read.
        of_claim: The NICs of each claim that has any. An allocated NIC is named by driver, pool and device, a pinned
            NIC by its place (node and PCI address).
        counts: The numbers of free NICs on nodes, by request.
    """

    def __init__(self, nodes: NodeTable, machine_of: Callable[[str], Machine | None], taint_rules: TaintRules) -> None:
        """Make an inventory without NICs.

        Args:
            nodes: The table of nodes. The inventory tells it when NICs become free.
            machine_of: Returns a node's machine.
            taint_rules: The administrators' DeviceTaintRules, which can taint NICs.
        """
        # Slices of NICs are read only from the first request for NICs on.
        self.asked = False  # whether a pod has requested NICs
        self.first_requested: Event[[]] = Event()  # called once, by the first request: the reflectors begin to read
        self.known: set[str] = set()  # names of the drivers whose NIC slices have all been read
        self._nodes, self._taint_rules = nodes, taint_rules
        self._machine_of = machine_of
        # What drivers publish. A pool is a driver and the pool's name.
        self._slices: dict[str, NicSlice] = {}  # by the slice's name
        self._of_pool: dict[tuple[str, str], dict[str, NicSlice]] = {}  # by pool and the slice's name
        self._pools: dict[str, dict[tuple[str, str], tuple[Nic, ...]]] = {}  # by node and pool
        self._classes: dict[str, tuple[str, ...]] = {}  # the selectors of each DeviceClass
        self._ways: dict[str, Ways] = {}  # by node: the paths between NICs and GPUs
        # What claims have. ``Given`` names a NIC by driver, pool and device, as an allocation does. ``Place`` names it
        # by node and PCI address, as a pin does. Several drivers may publish one NIC, so conflicts are found by place.
        # ``_place_of`` also keeps the place of a NIC that a claim has and that its driver has stopped publishing.
        self._place_of: dict[tuple[str, str], dict[Given, Place]] = {}  # by pool: the place of each NIC
        self.of_claim: dict[Key, frozenset[Given | Place]] = {}  # by claim: its NICs as the claim names them
        self._places: dict[Key, frozenset[Place]] = {}  # by claim: the places of these NICs, as far as they are known
        self._holders: dict[Place, set[Key]] = {}  # the claims with a NIC at a place
        self._given_of: dict[tuple[str, str], set[Key]] = {}  # by pool: claims with NICs of it
        self.counts = Counts(nodes, self)

    # What is seen.

    def slice_changed(self, change: Change[NicSlice]) -> None:
        """Update the NICs with a slice change from a NIC driver's reflector."""
        self._slices.pop(change.key[1], None)
        if change.new is not None:
            self._slices[change.key[1]] = change.new
        for pool in sorted({(piece.driver, piece.pool) for piece in (change.old, change.new) if piece is not None}):
            pieces = self._of_pool.setdefault(pool, {})
            before = {piece.node for piece in pieces.values()}
            for piece in (change.old, change.new):
                if piece is not None and (piece.driver, piece.pool) == pool:
                    pieces.pop(piece.metadata.name, None)
                    if piece is change.new:
                        pieces[piece.metadata.name] = piece
            self._read(pool, before)

    def rule_changed(self, change: Change[TaintRule]) -> None:
        """Update the NICs with a changed taint rule. ``TaintRules`` must be updated before."""
        for rule in filter(None, (change.old, change.new)):
            for pool in [pool for pool in self._of_pool if rule.about(*pool)]:
                pieces = self._of_pool[pool].values()
                if not rule.device or any(nic.given[2] == rule.device for piece in pieces for nic in piece.nics):
                    self._read(pool, {piece.node for piece in pieces})

    def _read(self, pool: tuple[str, str], before: set[str]) -> None:
        """Update the NICs of a pool (driver and name) from its newest complete ResourceSlices.

        ``before`` has the nodes on which the pool had NICs.
        """
        pieces = self._of_pool[pool]
        generations = resource_slices.generations(pieces.values(), lambda piece: (piece.generation, piece.count))
        newest = generations[0].slices if generations and generations[0].complete else []
        if not pieces:
            del self._of_pool[pool]
        by_node: dict[str, tuple[Nic, ...]] = {}
        for piece in newest:
            by_node[piece.node] = (*by_node.get(piece.node, ()), *(self._ruled(piece, nic) for nic in piece.nics))
        for node in sorted(before | by_node.keys()):
            nics_by_pool = self._pools.setdefault(node, {})
            if nics_by_pool.get(pool) == by_node.get(node):
                continue  # the slices have another version and the same NICs
            if node in by_node:
                nics_by_pool[pool] = by_node[node]
            else:
                nics_by_pool.pop(pool, None)
            self._ways.pop(node, None)
            self._changed(node)
        for node in before | by_node.keys():
            if not self._pools[node]:
                del self._pools[node]
        self._show(pool, by_node)
        for claim in sorted(self._given_of.get(pool, ())):
            self._placed(claim)

    def _ruled(self, piece: NicSlice, nic: Nic) -> Nic:
        """Return a NIC with the taints that DeviceTaintRules set on it. ``piece`` is its slice."""
        rules = self._taint_rules.over(piece.driver, piece.pool, nic.given[2])
        return msgspec.structs.replace(nic, taints=(*nic.taints, *(rule.taint for rule in rules))) if rules else nic

    def _show(self, pool: tuple[str, str], nodes: Iterable[str]) -> None:
        """Record, for a pool's NICs on some nodes, their places: node and PCI address.

        A place identifies a NIC even if two drivers publish it.
        """
        places = {nic.given: (node, nic.address) for node in nodes for nic in self._pools[node].get(pool, ())}
        if pool in self._given_of:  # a claim may have one that its driver does not show while it has it
            places = self._place_of.get(pool, {}) | places
        if places:
            self._place_of[pool] = places
        else:
            self._place_of.pop(pool, None)

    def _where(self, nic: Given | Place) -> Place | None:
        return self._place_of.get(nic[:2], {}).get(nic) if len(nic) == 3 else nic

    def read(self, driver: str) -> None:
        """Record that all ResourceSlices of a NIC driver have been read.

        Pods that request NICs of this driver wait until then.
        """
        self.known.add(driver)

    def class_changed(self, name: str, selectors: tuple[str, ...] | None) -> None:
        """Replace the selectors of a DeviceClass; ``selectors`` is None if the class does not exist."""
        if self._classes.get(name) == selectors:
            return
        if selectors is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = selectors
        self.counts.forget()

    def hold(self, claim: Key, held: Collection[Given | Place]) -> None:
        """Replace the NICs that a claim is allocated or pinned to by ``held``.

        A claim is pinned to NICs that the controller chose for it.
        """
        before = self.of_claim.get(claim, frozenset())
        if held or before:
            self._hold(claim, held)
            self._forget(before)

    def hold_anew(self, claim: Key, held: Collection[Given | Place]) -> None:
        """Replace the NICs of a claim whose records were found wrong.

        The audit of the cluster cache calls this. All records of the claim are removed first, even inconsistent ones.
        ``held`` are the right NICs.
        """
        before = self.of_claim.get(claim, frozenset())
        self._hold(claim, ())
        self._hold(claim, held)
        self._forget(before)

    def _hold(self, claim: Key, held: Collection[Given | Place]) -> None:
        for nic in self.of_claim.pop(claim, ()):
            if len(nic) == 3 and (users := self._given_of.get(nic[:2])) is not None:
                users.discard(claim)
                if not users:
                    del self._given_of[nic[:2]]
        if held:
            self.of_claim[claim] = frozenset(held)
            for nic in held:
                if len(nic) == 3:
                    self._given_of.setdefault(nic[:2], set()).add(claim)
        self._placed(claim)

    def _forget(self, held: Iterable[Given | Place]) -> None:
        """Forget the places (node and PCI address) of NICs that a claim had before.

        ``held`` has these NICs. A place is kept while a slice shows the NIC, or while any claim uses NICs of its pool.
        """
        for pool in {nic[:2] for nic in held if len(nic) == 3} - self._given_of.keys():
            self._show(pool, {piece.node for piece in self._of_pool.get(pool, {}).values()} & self._pools.keys())

    def _placed(self, claim: Key) -> None:
        """Record the places (node and PCI address) of a claim's NICs."""
        held, before = self.of_claim.get(claim, frozenset()), self._places.pop(claim, frozenset())
        known_places = map(self._where, held)
        now = frozenset(place for place in known_places if place is not None)
        if now:
            self._places[claim] = now
        for place in before - now:
            users = self._holders.get(place, set())
            users.discard(claim)
            if not users:
                self._holders.pop(place, None)
        for place in now - before:
            self._holders.setdefault(place, set()).add(claim)
        for node in sorted({node for node, _ in before ^ now}):
            self._changed(node)

    def _changed(self, node: str) -> None:
        self.counts.changed(node)
        if self.asked:
            self._nodes.helped(node)

    # What is asked.

    def held(self, claim: Key) -> frozenset[Given | Place]:
        """Return the NICs that a claim was allocated, or is pinned to by the controller."""
        return self.of_claim.get(claim, frozenset())

    def sound(self, claim: Key) -> bool:
        """Return whether the records of a claim's NICs agree.

        Each NIC of the claim must have the claim among its users. NICs whose place (node and PCI address) is not known
        are not compared. The audit of the cluster cache asks this.
        """
        held = self.of_claim.get(claim, frozenset())
        known_places = frozenset(map(self._where, held)) - {None}
        return self._places.get(claim, frozenset()) == known_places and all(
            claim in self._holders.get(place, ()) for place in known_places if place is not None
        )

    def claims(self) -> tuple[Key, ...]:
        """Return the claims that have NICs."""
        return tuple(self.of_claim)

    def slices(self) -> tuple[str, ...]:
        """Return the names of the ResourceSlices of NICs that are known."""
        return tuple(self._slices)

    def slice_of(self, name: str) -> NicSlice | None:
        """Return a NIC slice by its name; None if there is none."""
        return self._slices.get(name)

    def others(self, claim: Key, places: Iterable[Place] | None = None) -> set[Key]:
        """Return the other claims that use some NICs.

        Args:
            claim: The claim, which is left out.
            places: The NICs, by node and PCI address; None for the NICs of the claim.
        """
        all_places = self._places.get(claim, ()) if places is None else places
        return {key for place in all_places for key in self._holders.get(place, ())} - {claim}

    def on(self, node: str) -> list[Nic]:
        """Return the NICs of a node, free or not, ordered by address."""
        return sorted(self._every(node), key=lambda nic: (nic.address, nic.given))

    def _every(self, node: str) -> Iterator[Nic]:
        return (nic for each in self._pools.get(node, {}).values() for nic in each)

    def ways(self, node: str) -> Ways | None:
        """Return the PCIe distances of a node's NICs from its GPUs.

        None if the node's machine is not known.
        """
        machine, known = self._machine_of(node), self._ways.get(node)
        if machine is None:
            return None
        if known is None or known.machine is not machine:
            known = Ways(machine, self.on(node))
            if node in self._pools:
                self._ways[node] = known
        return known

    def untaken(self, node: str) -> Iterator[Nic]:
        """Yield the NICs of a node that no claim uses, in no particular order."""
        return (nic for nic in self._every(node) if (node, nic.address) not in self._holders)

    def many(self, node: str) -> int:
        """Return how many NICs a node has, free or not."""
        return sum(map(len, self._pools.get(node, {}).values()))

    def free(self, node: str, besides: Key | None = None) -> list[Nic]:
        """Return the free NICs of a node: no claim uses them, except the claim ``besides``."""
        return [nic for nic in self.on(node) if not self._holders.get((node, nic.address), set()) - {besides}]

    def unread(self) -> Reason | None:
        """Return why pods with NICs must wait: not all ResourceSlices of NICs are read.

        None if all are read. The first call starts the reading.
        """
        if not self.asked:
            self.asked = True
            self.first_requested()
        unknown = sorted(DRIVERS.keys() - self.known)
        text = f"Waiting until the slices of drivers {', '.join(unknown)} are read."
        return Reason(Cause.POD, text) if unknown else None

    def readable(self, ask: NicAsk) -> NicAsk:
        """Return a request without the NIC requests that only the scheduler can evaluate.

        These are moved to the field ``left`` of the result. This driver reads only simple forms of CEL. If a selector
        of a NIC request or its class has another form, the NIC request cannot be evaluated here. The same is true for
        NIC requests that ``matchAttribute`` ties to it.

        Raises:
            NoPlaceError: The NIC slices are not known yet, or the DeviceClass of a NIC request does not exist.
        """
        if ask.requests and (why := self.unread()):
            raise NoPlaceError(why.text, cause=why.cause)
        for request in ask.requests:
            if request.device_class not in self._classes:
                name = shown(request.device_class)
                raise NoPlaceError(f"Waiting for DeviceClass {name}, which does not exist. Create it")
        # Names of the requests that cannot be judged. ``terms`` returns None for them.
        unread = {request.name for request in ask.requests if self.terms(request) is None}
        if not unread:
            return ask
        is_growing = True
        while is_growing:  # until no constraint ties an unread request to one that is still read
            tied = {
                name for constraint in ask.alike if unread & set(constraint.requests) for name in constraint.requests
            }
            is_growing = not tied <= unread
            unread |= tied
        left_reason = "only the scheduler can evaluate a selector of its DeviceClass"
        return msgspec.structs.replace(
            ask,
            requests=tuple(request for request in ask.requests if request.name not in unread),
            alike=tuple(constraint for constraint in ask.alike if not unread & set(constraint.requests)),
            left=(*ask.left, *((request.name, left_reason) for request in ask.requests if request.name in unread)),
        )

    def terms(self, request: NicRequest) -> tuple[Term, ...] | None:
        """Return the conditions that a NIC must fulfil for a request and its class.

        None if a CEL selector of the request or the class cannot be read here.
        """
        terms: tuple[Term, ...] = ()
        for text in (*self._classes.get(request.device_class, ()), *request.selectors):
            read = simple_cel.read(text)
            if read is None:
                return None
            terms += read
        return terms
