"""The network's levels from Kueue's ``Topology`` objects, for clusters in which an administrator has defined them.

Source: kueue.x-k8s.io/v1beta2, ``spec.levels[].nodeLabel``: the widest level first. The node itself can only be last.
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
    """The fields that the cluster cache keeps of a Kueue Topology.

    Attributes:
        metadata: Metadata without labels and annotations.
        keys: The label key of each level above the node, nearest first.
    """

    metadata: Metadata
    keys: tuple[str, ...]


def read_topology(data: msgspec.Raw) -> KueueTopology | None:
    """Return the fields that the cluster cache keeps of a Kueue Topology.

    None if it has no levels above the node, too many levels, or a label key that is too long.

    Raises:
        BadJson: The JSON is not a Topology.
    """
    topology: _Topology = codec.decode(data, _Topology)
    keys = [level.node_label for level in reversed(topology.spec.levels) if level.node_label != HOSTNAME]
    if not 0 < len(keys) <= MOST_LEVELS or not all(0 < len(key) <= _LONGEST for key in keys):
        return None
    return KueueTopology(topology.metadata.bare, tuple(dict.fromkeys(keys)))


class KueueTopologies:
    """All Topology objects of Kueue, by name. Their label keys give the network's levels."""

    def __init__(self) -> None:
        """Make an empty collection of Kueue's Topology objects."""
        self._of: dict[str, KueueTopology] = {}

    def changed(self, change: Change[KueueTopology]) -> None:
        """Update the Kueue Topologies (network levels) with a change from their reflector."""
        self._of.pop(change.key[1], None)
        if change.new is not None:
            self._of[change.key[1]] = change.new

    def keys(self, nodes: Collection[Mapping[str, str]]) -> Sequence[str]:
        """Return the label keys of the first Topology that fits the nodes, nearest level first.

        A Topology fits if 90 % of the nodes have the label of its nearest level (the level just above the node).
        Topologies are tried in the order of their names. The result is empty if none fits.

        Args:
            nodes: The labels of each node with GPUs.
        """
        fit = (self._of[name].keys for name in sorted(self._of) if found(self._of[name].keys[0], nodes))
        return next(fit, ())
