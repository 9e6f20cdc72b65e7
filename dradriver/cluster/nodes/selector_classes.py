"""Which nodes match each class of pods with equal selectors, affinity and tolerations; kept while no node changes."""

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
CORDONED: Final = "unschedulable"
TAINTED: Final = "tainted"
UNSELECTED: Final = "not selected by the pod"
ELSEWHERE: Final = "out of reach of the pod's volumes"
NAMELESS: Final = f"without the label {HOSTNAME}"
TOO_MANY: Final = "too many selectors and tolerations"


class Classes:
    """Labels, taints and cordons of all rows, and the masks made from them.

    Masks stay as they are until ``changed``: most changes are of rows that nobody looks at.
    """

    def __init__(self) -> None:
        self._labels = Labels()
        self._taints = Taints()
        self._masks: dict[Constraints, Bools] = {}

    def grow(self, rows: int) -> None:
        """Add rows without labels and taints to all classes of selectors."""
        self._labels.grow(rows)
        self._taints.grow(rows)
        self.changed()

    def set_labels(self, row: int, name: str, labels: Mapping[str, str]) -> None:
        """Replace the labels of a node's row for all selectors. The mapping is kept, and must not change."""
        self._labels.set(row, name, labels)

    def set_taints(self, row: int, old: Iterable[Taint], new: Iterable[Taint], *, cordoned: bool) -> None:
        """Update each class of tolerations by a node's new taints; ``old`` are those that the node has."""
        self._taints.set(row, old, new, cordoned=cordoned)

    def clear(self, row: int, taints: Iterable[Taint]) -> None:
        """Remove a node's row from all classes of selectors; ``taints`` are those it has."""
        self._labels.clear(row)
        self._taints.set(row, taints, (), cordoned=False)

    def changed(self) -> None:
        """Compute the nodes of all classes again when they are asked for next."""
        self._masks.clear()

    def labelled(self, key: str, values: Collection[str]) -> Bools:
        """Return the nodes that a selector by a label's values selects: shape (rows,), the caller's own."""
        return self._labels.labelled(key, values)

    def having(self, key: str) -> Bools:
        """Return the nodes that a selector by a label's presence selects: shape (rows,), the caller's own."""
        return self._labels.having(key)

    def values(self, key: str, rows: Bools) -> frozenset[str]:
        """Return the values, among some nodes, of a label that selectors ask for."""
        return self._labels.values(key, rows)

    def reaching(self, where: Where) -> Bools:
        """Return the nodes that selectors of volumes or claims select, all of them: shape (rows,), the caller's own."""
        return self._labels.reaching(where)

    def selected(self, constraints: Constraints) -> Bools:
        """Return the nodes that a node selector and node affinity select: shape (rows,), the caller's own."""
        return self._labels.selected(constraints)

    def tolerated(self, tolerations: tuple[Pattern, ...]) -> Bools:
        """Return the nodes whose taints the tolerations cover, except a cordon: shape (rows,), the caller's own."""
        return self._taints.tolerated(tolerations)

    def mask(self, constraints: Constraints) -> Bools:
        """Return the nodes that pods of a class of selectors may run on, whatever is free there: shape (rows,).

        Not to be changed. What it says of rows without a node means nothing.
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
        """Return why some nodes do not match a class of selectors: of each row the first cause."""
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
