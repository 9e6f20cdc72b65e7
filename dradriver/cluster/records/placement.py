"""A placement decision: the node and the GPUs that were chosen for a pod.

The decision names GPUs by uuid. So it stays valid if the GPUs' numbers change before the decision is written.

A *gang barrier device* in a pod's claim keeps the pod unbound until its whole gang can start.
"""

from __future__ import annotations

import msgspec

from dradriver.allocator.request import Choice, PartChoice
from dradriver.api.claims.gang_plan_note import Planned
from dradriver.api.claims.pins import Device, Usage, taken_of
from dradriver.api.claims.preemption_note import Preempts


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The node and the GPUs that were chosen for a pod.

    Attributes:
        choice: The chosen GPUs, with the node and the machine's GPU numbers at that time.
        hostnames: The nodes that the pod is narrowed to, as ``kubernetes.io/hostname`` labels by node name. For a
            single pod the chosen node is first. Empty if the pod is not narrowed (``PlacementRequest.open``).
        uuids: The chosen GPUs by the claim's requests, in the order of ``choice.containers`` and their fractions.
        addresses: The PCI addresses of the chosen GPUs by uuid, if the allocating driver names GPUs by address.
        compute: Compute slices of the node's MIG profiles, by profile name; empty if no MIG slices are requested.
        placed: Uuids of the node's GPUs whose MIG slices are devices of their own; empty if no MIG slices are
            requested.
        texts: The annotations to write on the pod; the value None removes an annotation.
        joins: The uid of an existing claim that this pod is to share with other pods; empty if a claim is to be
            created.
        planned: The plan of its gang; None for a single pod.
        seat: Whether its claim requests a gang barrier device, so that the pod is bound only together with its gang.
        preempts: The pods that must end before the pod can start; None for none.
        nics: PCI addresses of the NICs that the pod gets in addition to GPUs, by the claim's requests.
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
        """Return the name of the node that was chosen."""
        return self.choice.node

    @property
    def taken(self) -> dict[Device, Usage]:
        """Return the devices that the placement uses, with the fraction of each."""
        return taken_of(self.choice, self.uuids)
