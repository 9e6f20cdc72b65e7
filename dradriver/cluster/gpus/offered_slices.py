"""The slices that nodes offer, of one driver or joined of two, without devices that taint rules keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.claims.pins import Device, Key, Usage
from dradriver.cluster.gpus.inventory import Inventory
from dradriver.cluster.gpus.joined_slices import JoinedSlices
from dradriver.cluster.gpus.taint_rules import TaintRule, TaintRules
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.records.records import ClaimRecord
from dradriver.cluster.records.slice_records import SliceRecord
from dradriver.kube.reflector import Change


class Offered:
    """Takes slices in for the inventory.

    Attributes:
        taint_rules: What administrators' rules leave of the slices.
    """

    def __init__(
        self,
        inventory: Inventory,
        nodes: NodeTable,
        *,
        rehold: Callable[[Key], None],
        touch: Callable[[Key], None],
        known: Callable[[str], None],
    ) -> None:
        """Begin with no slice.

        Args:
            inventory: Told of the GPUs.
            nodes: Told of nodes on which some may have become free.
            rehold: Called with each claim whose devices may be other GPUs now.
            touch: Called with each claim that is pinned on a node whose GPUs have changed.
            known: Called with each node whose GPUs have become known.
        """
        self._inventory, self._nodes = inventory, nodes
        self._rehold, self._touch, self._known = rehold, touch, known
        self.taint_rules = TaintRules()
        self._theirs = None if current_ledger() is OURS else JoinedSlices()
        self._pinned_on: dict[str, set[Key]] = {}  # claims of ours by node

    def slice_changed(self, change: Change[SliceRecord]) -> None:
        """Update the offered slices by a changed slice."""
        self._take_in(self.taint_rules.slice_changed(change))

    def rule_changed(self, change: Change[TaintRule]) -> None:
        """Update the offered slices by a changed taint rule."""
        for concerned in self.taint_rules.rule_changed(change):
            self._take_in(concerned)

    def tables_made(self, node: str) -> None:
        """Note that the tables of the machine that a node's slices offer are made."""
        self._inventory.set_tables(node)
        self._touch_pinned_on(node)

    def claim_changed(self, key: Key, old: ClaimRecord | None, new: ClaimRecord | None) -> None:
        """Note on which node a claim is pinned to offered devices."""
        if old is not None and old.pin is not None:
            node = old.pin.choice.node
            self._pinned_on[node].discard(key)
            if not self._pinned_on[node]:
                del self._pinned_on[node]
        if new is not None and new.pin is not None:
            self._pinned_on.setdefault(new.pin.choice.node, set()).add(key)

    def given(self, key: Key, claim: ClaimRecord | None) -> Mapping[Device, Usage] | None:
        """Return the GPUs in offered slices that another driver allocated to a claim; None if none did."""
        if self._theirs is None:
            return None
        if claim is not None and claim.devices is not None:
            return self._theirs.held(claim)
        self._theirs.forget(key)
        return None

    def results(self, claim: ClaimRecord | None) -> Mapping[Device, Usage] | None:
        """Return what another driver allocated to a claim, of each offered GPU no more than that; None if none did."""
        if self._theirs is None or claim is None or claim.devices is None:
            return None
        return self._theirs.results(claim)

    def slices(self) -> dict[str, SliceRecord]:
        """Return the slices that were taken in, by name."""
        return (self._theirs or self._inventory).slices()

    def has_slices(self, node: str) -> bool:
        """Return whether a node has any slice of our own driver, complete or not."""
        return (self._theirs or self._inventory).has_slices(node)

    def slice_of(self, pool: str, name: str) -> SliceRecord | None:
        """Return a pool's slice of that name as it was taken in."""
        return (self._theirs or self._inventory).slice_of(pool, name)

    def _take_in(self, change: Change[SliceRecord]) -> None:
        if self._theirs is None:
            self._set_slice(change.old, change.new)
        else:
            for pool, old, new in self._theirs.set_slice(change.old, change.new):
                for claim in self._theirs.users(pool):
                    self._rehold(claim)
                self._set_slice(old, new)

    def _set_slice(self, old: SliceRecord | None, new: SliceRecord | None) -> None:
        for pool in self._inventory.set_slice(old, new):
            self._nodes.helped(pool)
            if self._inventory.pool(pool) is not None:
                self._known(pool)
            self._touch_pinned_on(pool)

    def _touch_pinned_on(self, node: str) -> None:
        for claim in sorted(self._pinned_on.get(node, ())):
            self._touch(claim)
