"""The slices that nodes offer, without the devices that taint rules exclude.

The slices come from this driver. If another driver allocates GPUs, its slices are joined with them. The cluster cache
calls this module for each changed slice, taint rule and claim.

The *inventory* keeps the GPUs of every node. A claim is *pinned* to the GPUs that the controller chose for it.
"""

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
    """Reads ResourceSlices, removes devices by taint rules, and passes the rest to the inventory.

    Attributes:
        taint_rules: The DeviceTaintRules, which remove devices from slices.
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
        """Make an object that has read no ResourceSlices yet.

        Args:
            inventory: Gets the GPUs of the slices.
            nodes: Gets the nodes on which GPUs may have become free.
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
        """Update the offered GPUs after a ResourceSlice changed."""
        self._take_in(self.taint_rules.slice_changed(change))

    def rule_changed(self, change: Change[TaintRule]) -> None:
        """Update the offered GPUs after a DeviceTaintRule changed: tainted devices are not offered."""
        for concerned in self.taint_rules.rule_changed(change):
            self._take_in(concerned)

    def tables_made(self, node: str) -> None:
        """Make a node available for placement, because the bandwidths of its GPU sets are computed.

        They are in the allocator's tables for the node's kind of machine.
        """
        self._inventory.set_tables(node)
        self._touch_pinned_on(node)

    def claim_changed(self, key: Key, old: ClaimRecord | None, new: ClaimRecord | None) -> None:
        """Record the node that a changed claim is pinned to.

        A pinned claim can be allocated only GPUs that the controller chose. When GPUs of that node change, ``touch`` is
        called with the claim.
        """
        if old is not None and old.pin is not None:
            node = old.pin.choice.node
            self._pinned_on[node].discard(key)
            if not self._pinned_on[node]:
                del self._pinned_on[node]
        if new is not None and new.pin is not None:
            self._pinned_on.setdefault(new.pin.choice.node, set()).add(key)

    def given(self, key: Key, claim: ClaimRecord | None) -> Mapping[Device, Usage] | None:
        """Return the GPUs that another driver's allocation to a claim keeps from other claims.

        These can be more than the allocated GPUs, if the driver's device names have shifted to other GPUs. None if this
        driver allocates devices, or if the claim has no allocation.
        """
        if self._theirs is None:
            return None
        if claim is not None and claim.devices is not None:
            return self._theirs.held(claim)
        self._theirs.forget(key)
        return None

    def results(self, claim: ClaimRecord | None) -> Mapping[Device, Usage] | None:
        """Return exactly the GPUs or MIG slices that another driver allocated to a claim.

        Unlike in ``given``, GPUs that are only kept from other claims are left out. None if this driver allocates
        devices, or if the claim has no allocation.
        """
        if self._theirs is None or claim is None or claim.devices is None:
            return None
        return self._theirs.results(claim)

    def slices(self) -> dict[str, SliceRecord]:
        """Return all ResourceSlices of GPUs by name, as they were read."""
        return (self._theirs or self._inventory).slices()

    def has_slices(self, node: str) -> bool:
        """Return whether a node has any slice of our own driver, complete or not."""
        return (self._theirs or self._inventory).has_slices(node)

    def slice_of(self, pool: str, name: str) -> SliceRecord | None:
        """Return a pool's slice by its name, as it was read; None if there is none."""
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
