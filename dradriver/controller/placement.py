"""A decision by identity: nothing in it has to be looked up again, whatever happens until it is written."""

from __future__ import annotations

import msgspec

from dradriver.allocator.request import Choice
from dradriver.api.pins import Device, devices_of


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pod goes.

    Attributes:
        choice: What was chosen, with the node and the machine's numbers of that time.
        hostnames: The pod's nodes, the chosen one first: ``kubernetes.io/hostname`` labels by node name.
        uuids: The chosen GPUs by container's name, in the order of ``choice.containers``.
        texts: What is written on the pod; None for what is taken away.
    """

    choice: Choice
    hostnames: dict[str, str]
    uuids: dict[str, tuple[str, ...]]
    texts: dict[str, str | None]

    @property
    def node(self) -> str:
        """The chosen node."""
        return self.choice.node

    @property
    def devices(self) -> frozenset[Device]:
        """The chosen GPUs."""
        return devices_of(self.choice.node, self.uuids)
