"""The nodes that each class of pods with equal selectors, affinity and tolerations may use.

They are stored as a *mask*: one bool for each row (a node's index). A mask is kept until a node changes. ``NodeTable``
reads the masks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from dradriver.api.base.affinity import HOSTNAME
from dradriver.api.base.objects import Taint
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.labels import Labels
from dradriver.cluster.nodes.pod_demands import OVERSIZE, Constraints, Where
from dradriver.cluster.nodes.taints import Pattern, Taints, tolerates_cordon

_MOST_MASKS: Final = 512  # a byte a row each

# Why a node was left out, as people read it in the reason on a pod.
CORDONED: Final = "cordoned"
TAINTED: Final = "tainted"
UNSELECTED: Final = "not selected by the pod"
ELSEWHERE: Final = "out of reach of the pod's volumes"
NAMELESS: Final = f"without the label {HOSTNAME}"
TOO_MANY: Final = "too many selectors and tolerations"


class Classes:
    """The labels, taints and cordons of all nodes, and the masks made from them.

    A mask says for each row (a node's index) whether pods with some constraints may run there. Masks stay valid until
    ``changed`` is called. The caller need not call it for a row without GPUs, because masks are only used for rows with
    GPUs.
    """

    def __init__(self) -> None:
        self._labels = Labels()
        self._taints = Taints()
        self._masks: dict[Constraints, Bools] = {}

    def grow(self, rows: int) -> None:
        """Add rows (nodes) without labels and taints."""
        self._labels.grow(rows)
        self._taints.grow(rows)
        self.changed()

    def set_labels(self, row: int, name: str, labels: Mapping[str, str]) -> None:
        """Replace the labels of a node.

        ``row`` is the node's index, ``name`` its name. The mapping is kept, and must not change.
        """
        self._labels.set(row, name, labels)

    def set_taints(self, row: int, old: Iterable[Taint], new: Iterable[Taint], *, cordoned: bool) -> None:
        """Replace the taints of a node, and set whether it is cordoned.

        ``row`` is the node's index. ``old`` are its taints before, ``new`` its taints now.
        """
        self._taints.set(row, old, new, cordoned=cordoned)

    def clear(self, row: int, taints: Iterable[Taint]) -> None:
        """Remove the labels and taints of a node.

        ``row`` is the node's index, ``taints`` are its taints before.
        """
        self._labels.clear(row)
        self._taints.set(row, taints, (), cordoned=False)

    def changed(self) -> None:
        """Drop all masks (which nodes a class of pods may use).

        Each is computed again on its next use.
        """
        self._masks.clear()

    def labelled(self, key: str, values: Collection[str]) -> Bools:
        """Return the nodes that have a label with one of some values.

        ``key`` is the label's key. The result is a new array with one bool for each row (a node's index).
        """
        return self._labels.labelled(key, values)

    def having(self, key: str) -> Bools:
        """Return the nodes that have a label with this key, whatever its value.

        The result is a new array with one bool for each row (a node's index).
        """
        return self._labels.having(key)

    def values(self, key: str, rows: Bools) -> frozenset[str]:
        """Return the values that a label has on some of the nodes.

        ``key`` is the label's key. ``rows`` are the nodes, one bool for each row (a node's index).
        """
        return self._labels.values(key, rows)

    def reaching(self, where: Where) -> Bools:
        """Return the nodes that can reach all of some volumes.

        ``where`` has the terms (conditions on nodes) of each volume. A node can reach a volume if it matches at least
        one of the volume's terms. The result is a new array with one bool for each row (a node's index).
        """
        return self._labels.reaching(where)

    def selected(self, constraints: Constraints) -> Bools:
        """Return the nodes that a node selector and node affinity select.

        Both are in ``constraints``, whose other fields are ignored. The result is a new array with one bool for each
        row (a node's index).
        """
        return self._labels.selected(constraints)

    def tolerated(self, tolerations: tuple[Pattern, ...]) -> Bools:
        """Return the nodes whose taints the tolerations cover.

        A cordon is not checked. The result is a new array with one bool for each row (a node's index).
        """
        return self._taints.tolerated(tolerations)

    def mask(self, constraints: Constraints) -> Bools:
        """Return the nodes on which pods with these constraints may run.

        The result has one bool for each row (a node's index). Free resources are not considered. The caller must not
        change the array. Rows without a node have arbitrary values.
        """
        mask = self._masks.pop(constraints, None)
        if mask is None:
            mask = self._labels.selected(constraints)
            mask &= self._taints.tolerated(constraints.tolerations)
            if constraints.volumes:
                mask &= self._labels.reaching(constraints.volumes)
            if constraints.by_hostname:
                mask &= self._labels.having(HOSTNAME)
            if not tolerates_cordon(constraints.tolerations):
                mask &= ~self._taints.cordoned
            if len(self._masks) >= _MOST_MASKS:
                del self._masks[next(iter(self._masks))]
        self._masks[constraints] = mask
        return mask

    def causes(self, constraints: Constraints, rows: Bools) -> list[str]:
        """Return why some nodes do not meet a pod's constraints.

        Each node contributes its first cause. ``rows`` are the nodes, one bool for each row (a node's index).
        """
        if constraints == OVERSIZE:
            return [TOO_MANY]
        opened = [
            (TAINTED, self._taints.tolerated(constraints.tolerations)),
            (UNSELECTED, self._labels.selected(constraints)),
            (ELSEWHERE, self._labels.reaching(constraints.volumes)),
        ]
        if constraints.by_hostname:
            opened.append((NAMELESS, self._labels.having(HOSTNAME)))
        if not tolerates_cordon(constraints.tolerations):
            opened.insert(0, (CORDONED, ~self._taints.cordoned))
        causes = []
        for cause, mask in opened:
            if (rows & ~mask).any():
                causes.append(cause)
            rows = rows & mask
        return causes
