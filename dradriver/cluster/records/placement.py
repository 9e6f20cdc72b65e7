"""A decision by identity: nothing in it has to be looked up again, whatever happens until it is written."""

from __future__ import annotations

import msgspec

from dradriver.allocator.request import Choice, PartChoice
from dradriver.api.claims.gang_plan_note import Planned
from dradriver.api.claims.pins import Device, Usage, taken_of
from dradriver.api.claims.preemption_note import Preempts


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pod goes.

    Attributes:
        choice: What was chosen, with the node and the machine's numbers of that time.
        hostnames: The pod's nodes, of a pod alone the chosen one first: ``kubernetes.io/hostname`` labels by node name.
            Empty for a pod that is not confined to nodes (``PlacementRequest.open``).
        uuids: The chosen GPUs by the claim's requests, in the order of ``choice.containers`` and their parts.
        addresses: The chosen GPUs' addresses on the PCI bus by uuid, where that is what tells them apart.
        compute: Compute slices of the node's MIG profiles, by the profile's name; none where nothing asks for them.
        placed: Uuids of the node's GPUs whose MIG slices are devices of their own; none where nothing asks for slices.
        texts: What is written on the pod; None for what is taken away.
        joins: The uid of the claim of others that the pod is to share; empty where one is to be created.
        planned: The plan of its gang; None for a pod alone.
        seat: Whether its claim asks for a seat, so that the pod is bound only with all others of its gang.
        preempts: Which pods have to end for it first; None for none.
        nics: PCI addresses of the NICs that it gets beside, by the claim's requests.
    """

    choice: Choice | PartChoice
    hostnames: dict[str, str]
    uuids: dict[str, tuple[str, ...]]
    texts: dict[str, str | None]
    addresses: dict[str, str] = {}
    compute: dict[str, int] = {}
    placed: frozenset[str] = frozenset()
    joins: str = ""
    planned: Planned | None = None
    seat: bool = False
    preempts: Preempts | None = None
    nics: dict[str, tuple[str, ...]] = {}

    @property
    def node(self) -> str:
        """Return the node of the placement."""
        return self.choice.node

    @property
    def taken(self) -> dict[Device, Usage]:
        """Return what the placement takes of each chosen GPU's device."""
        return taken_of(self.choice, self.uuids)
