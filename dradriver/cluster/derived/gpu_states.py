"""The state of each GPU of a node: the claims that use it, or the reason why no claim can get it.

``gputopo free``, the page and the metrics read the states here.

``NodeView.state`` computes the same states from other data. There are two computations for these reasons:

* ``NodeView`` reads whole slices and claims. It has the texts of taints and MIG slices, GPUs that no slice lists, and
  machines on which nothing is placed. The cluster cache keeps none of these: for 5,000 nodes it would need more memory.
* ``gputopo topo`` and ``health`` read slices and claims only. To use the states here, they would have to fill a cluster
  cache first.

``tests/unit/cluster/test_states_of_gpus.py`` compares the results.

The *inventory* has all GPUs and their claims, the *accounts* have the state of each claim.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from dradriver.api.claims.pins import MigSlice
from dradriver.cluster.gpus.inventory import Inventory
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.pods.claim_accounts import Accounts

State = Literal["allocated", "tentative", "unhealthy", "blocked", "unavailable", "reserved", "fractions", "free"]
STATES: Final[tuple[State, ...]] = (
    "allocated", "tentative", "unhealthy", "blocked", "unavailable", "reserved", "fractions", "free",
)  # fmt: skip
"""The state of a GPU is the first that is true. ``gputopo topo`` (``NodeView``) and the page use the same words.

allocated    the scheduler allocated the GPU, or fractions of it, to a claim
tentative    the controller chose the GPU, or fractions of it, for a claim that is not allocated yet
unhealthy    a taint of the node agent says that the GPU has a fault
blocked      a DeviceTaintRule taints the GPU, its mode is about to change, or MIG mode is on without instances
unavailable  its node is not ready, is cordoned, or is scheduled for maintenance
reserved     it is reserved for a waiting pod or gang
fractions    no claim uses it, and claims can only get shares or MIG slices of it
free         a pod can get the whole GPU
"""
PartKind = Literal["share", "slice"]


class NodeGpus:
    """Counts of the GPUs of one node.

    Attributes:
        states: The number of GPUs by product and state, such as ``free`` or ``allocated``.
        parts: The number of GPUs with allocated shares or MIG slices, by product and kind of fraction.
    """

    __slots__ = ("parts", "states")

    def __init__(self) -> None:
        """Make an object in which no GPUs are counted yet."""
        self.states: Counter[tuple[str, State]] = Counter()
        self.parts: Counter[tuple[str, PartKind]] = Counter()


def states_of(node: str, inventory: Inventory, accounts: Accounts, nodes: NodeTable) -> dict[int, State]:
    """Return the state of each GPU of a node, such as ``free``, by GPU number.

    Empty if nothing can be placed on the node. ``gputopo free``, the page and the metrics all take the meaning of
    "free" from here. ``inventory`` has all GPUs, ``accounts`` the claims' states, ``nodes`` all nodes.
    """
    pool = inventory.pool(node)
    if pool is None:
        return {}
    takes_new = nodes.takes_new(node)

    def state_of(device: str) -> State:
        claims = inventory.holders((node, device))
        if any(claim is not None and claim.devices for claim in map(accounts.claims.get, claims)):
            return "allocated"
        if claims:
            return "tentative"
        if device not in pool.usable:
            return "unhealthy" if device in pool.ill else "blocked"
        if not takes_new:
            return "unavailable"
        if inventory.reserved.whose((node, device)):
            return "reserved"
        return "free" if inventory.usable((node, device), None) else "fractions"

    return {number: state_of(device) for number, (device, _) in pool.devices.items()}


def gpus_of(node: str, inventory: Inventory, accounts: Accounts, nodes: NodeTable) -> NodeGpus:
    """Return the number of a node's GPUs in each state.

    If nothing can be placed on the node, no GPUs are counted. ``inventory`` has all GPUs, ``accounts`` the claims'
    states, ``nodes`` all nodes.
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
