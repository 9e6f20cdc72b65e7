"""The network's levels as Kueue's ``Topology`` objects name them: whoever has one has written them down already.

Source: kueue.x-k8s.io/v1beta2, ``spec.levels[].nodeLabel``, the widest first, the node itself only as the last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from dradriver.api.base.affinity import HOSTNAME
from dradriver.api.base.objects import Metadata, Part
from dradriver.api.policies.fields import MOST_LEVELS
from dradriver.kube import codec
from dradriver.kube.reflector import Change
from dradriver.topology.network_levels import found

_LONGEST = 317  # characters of a label's key


class _Level(Part, frozen=True):
    node_label: str = ""


class _Spec(Part, frozen=True):
    levels: tuple[_Level, ...] = ()


class _Topology(Part, frozen=True):
    metadata: Metadata
    spec: _Spec = _Spec()


class KueueTopology(msgspec.Struct, frozen=True):
    """What is kept of one.

    Attributes:
        metadata: Without labels and annotations.
        keys: The label of each level but the node's own, nearest first.
    """

    metadata: Metadata
    keys: tuple[str, ...]


def read_topology(data: msgspec.Raw) -> KueueTopology | None:
    """Return what is kept of a Kueue Topology; None for one without levels above the node, or with too many.

    Raises:
        BadJson: It is none.
    """
    topology: _Topology = codec.decode(data, _Topology)
    keys = [level.node_label for level in reversed(topology.spec.levels) if level.node_label != HOSTNAME]
    if not 0 < len(keys) <= MOST_LEVELS or not all(0 < len(key) <= _LONGEST for key in keys):
        return None
    return KueueTopology(topology.metadata.bare, tuple(dict.fromkeys(keys)))


class KueueTopologies:
    """All of them, by name."""

    def __init__(self) -> None:
        """Begin with none."""
        self._of: dict[str, KueueTopology] = {}

    def changed(self, change: Change[KueueTopology]) -> None:
        """Update the Kueue Topologies by what their reflector saw."""
        self._of.pop(change.key[1], None)
        if change.new is not None:
            self._of[change.key[1]] = change.new

    def keys(self, nodes: Collection[Mapping[str, str]]) -> Sequence[str]:
        """Return the levels of the first Kueue Topology whose nearest label nine nodes of ten have; empty for none.

        Args:
            nodes: The labels of each node with GPUs.
        """
        fit = (self._of[name].keys for name in sorted(self._of) if found(self._of[name].keys[0], nodes))
        return next(fit, ())
