"""What becomes of a node's GPUs now: who has them, and why nobody is given those that nobody has."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from dradriver.api.claims.pins import MigSlice
from dradriver.cluster.gpus.inventory import Inventory
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.pods.claim_accounts import Accounts

State = Literal["held", "promised", "ill", "withheld", "closed", "reserved", "free"]
STATES: Final[tuple[State, ...]] = ("held", "promised", "ill", "withheld", "closed", "reserved", "free")
"""Of each GPU the first that is true:

held      the scheduler gave a claim the GPU, or parts of it
promised  a claim is about to get the GPU, or parts of it
ill       a taint says that something is wrong with it
withheld  an administrator's rule taints it, or processes are on it that no claim accounts for
closed    its node is not ready, or closed to new pods
reserved  it is kept for somebody who waits
free      anybody may have it
"""
PartKind = Literal["share", "slice"]


class NodeGpus:
    """The GPUs of one node, counted.

    Attributes:
        states: How many there are, by product and state.
        parts: How many have shares or MIG slices on them, by product and kind.
    """

    __slots__ = ("parts", "states")

    def __init__(self) -> None:
        """Begin with none."""
        self.states: Counter[tuple[str, State]] = Counter()
        self.parts: Counter[tuple[str, PartKind]] = Counter()


def gpus_of(node: str, inventory: Inventory, accounts: Accounts, nodes: NodeTable) -> NodeGpus:
    """Return the number of a node's GPUs in each state.

    If the slices of the node are not complete, no GPUs are counted.
    """
    node_gpus = NodeGpus()
    pool = inventory.pool(node)
    if pool is None:
        return node_gpus
    for gpu in pool.machine.gpus:
        device, _ = pool.devices[gpu.index]
        usage_by_claim = inventory.holders((node, device))
        claims = [accounts.claims.get(key) for key in usage_by_claim]
        state: State
        if any(claim is not None and claim.devices for claim in claims):
            state = "held"
        elif usage_by_claim:
            state = "promised"
        elif device not in pool.usable:
            state = "ill" if device in pool.ill else "withheld"
        elif not nodes.takes_new(node):
            state = "closed"
        else:
            state = "reserved" if inventory.reserved.whose((node, device)) else "free"
        node_gpus.states[gpu.product, state] += 1

        fractions = {fraction for usage in usage_by_claim.values() for fraction in usage or ()}
        if any(isinstance(fraction, MigSlice) for fraction in fractions):
            node_gpus.parts[gpu.product, "slice"] += 1
        elif fractions:
            node_gpus.parts[gpu.product, "share"] += 1
    return node_gpus
