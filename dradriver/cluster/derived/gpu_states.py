"""What becomes of a node's GPUs now: who has them, and why nobody is given those that nobody has."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from dradriver.api.claims.pins import MigSlice
from dradriver.cluster.gpus.inventory import Inventory
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.pods.claim_accounts import Accounts

State = Literal["held", "promised", "ill", "withheld", "closed", "reserved", "parts", "free"]
STATES: Final[tuple[State, ...]] = ("held", "promised", "ill", "withheld", "closed", "reserved", "parts", "free")
"""Of each GPU the first that is true:

held      the scheduler gave a claim the GPU, or parts of it
promised  a claim is about to get the GPU, or parts of it
ill       a taint says that something is wrong with it
withheld  an administrator's rule taints it, or processes are on it that no claim accounts for
closed    its node is not ready, closed to new pods, or goes for maintenance
reserved  it is kept for somebody who waits
parts     it is empty, and handed out in shares or MIG slices alone
free      a pod may have the whole of it
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


def states_of(node: str, inventory: Inventory, accounts: Accounts, nodes: NodeTable) -> dict[int, State]:
    """Return the state of each GPU of a node, by its number; none if nothing can be placed on the node.

    This is what "free" means everywhere: for ``gputopo free``, for the page and for the metrics.
    """
    pool = inventory.pool(node)
    if pool is None:
        return {}
    takes_new = nodes.takes_new(node)

    def state_of(device: str) -> State:
        claims = inventory.holders((node, device))
        if any(claim is not None and claim.devices for claim in map(accounts.claims.get, claims)):
            return "held"
        if claims:
            return "promised"
        if device not in pool.usable:
            return "ill" if device in pool.ill else "withheld"
        if not takes_new:
            return "closed"
        if inventory.reserved.whose((node, device)):
            return "reserved"
        return "free" if inventory.usable((node, device), None) else "parts"

    return {number: state_of(device) for number, (device, _) in pool.devices.items()}


def gpus_of(node: str, inventory: Inventory, accounts: Accounts, nodes: NodeTable) -> NodeGpus:
    """Return the number of a node's GPUs in each state.

    If nothing can be placed on the node, no GPUs are counted.
    """
    node_gpus = NodeGpus()
    pool = inventory.pool(node)
    if pool is None:
        return node_gpus
    states = states_of(node, inventory, accounts, nodes)
    for gpu in pool.machine.gpus:
        node_gpus.states[gpu.product, states[gpu.index]] += 1
        device, _ = pool.devices[gpu.index]
        usage_by_claim = inventory.holders((node, device))
        fractions = {fraction for usage in usage_by_claim.values() for fraction in usage or ()}
        if any(isinstance(fraction, MigSlice) for fraction in fractions):
            node_gpus.parts[gpu.product, "slice"] += 1
        elif fractions:
            node_gpus.parts[gpu.product, "share"] += 1
    return node_gpus
