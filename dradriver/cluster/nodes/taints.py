"""Rows by taint: which nodes a list of tolerations opens.

A taint is covered by eight patterns at most: its key or any, its effect or any, its value or any. A toleration is one
pattern. So what it covers is one look-up, however many different taints there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np

from dradriver.api.base.objects import Taint
from dradriver.cluster.nodes.columns import Bools, Codes, grown

Pattern: TypeAlias = tuple[str, ...]  # key, effect and, unless all are covered, value; an empty key or effect is any

_BLOCKING: Final = ("", "NoSchedule", "NoExecute")


def pattern_of(key: str, operator: str, value: str, effect: str) -> Pattern | None:
    """Return a toleration's pattern; None if it covers no taint that keeps pods away."""
    if effect not in _BLOCKING or operator not in ("", "Equal", "Exists"):
        return None
    return (key, effect) if operator == "Exists" else (key, effect, value)


def patterns(taint: Taint) -> list[Pattern]:
    """Return the patterns of tolerations that cover a taint."""
    pairs = {(key, effect) for key in ("", taint.key) for effect in ("", taint.effect)}
    return [*pairs, *((key, effect, taint.value) for key, effect in pairs)]


_CORDON: Final = frozenset(patterns(Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")))


class Taints:
    """The taints of every row that keep pods away, and who is cordoned."""

    def __init__(self) -> None:
        self.cordoned: Bools = np.zeros(0, np.bool_)
        self._codes: Codes[Taint] = Codes()
        self._covered: dict[Pattern, set[int]] = {}  # codes of the taints that a pattern covers
        self._slots = [np.zeros(0, np.intp)]  # the code of each row's first taint, of its second, …

    def grow(self, rows: int) -> None:
        """Add rows of nodes without taints."""
        self.cordoned = grown(self.cordoned, rows)
        self._slots = [grown(codes, rows) for codes in self._slots]

    def set(self, row: int, old: Iterable[Taint], new: Iterable[Taint], *, cordoned: bool) -> None:
        """Replace the taints of a node's row; ``old`` are those it has."""
        for taint in _blocking(old):
            if code := self._codes.give(taint):
                for pattern in patterns(taint):
                    self._covered[pattern].discard(code)
                    if not self._covered[pattern]:
                        del self._covered[pattern]
        codes = [self._take(taint) for taint in _blocking(new)]
        while len(self._slots) < len(codes):
            self._slots.append(np.zeros_like(self._slots[0]))
        for number, slot in enumerate(self._slots):
            slot[row] = codes[number] if number < len(codes) else 0
        while len(self._slots) > 1 and not self._slots[-1].any():
            self._slots.pop()
        self.cordoned[row] = cordoned

    def tolerated(self, tolerations: tuple[Pattern, ...]) -> Bools:
        """Return the nodes all of whose taints the tolerations cover, except a cordon: shape (rows,)."""
        if ("", "") in tolerations:
            return np.ones(len(self.cordoned), np.bool_)
        covered = np.zeros(self._codes.size, np.bool_)
        covered[0] = True
        for pattern in tolerations:
            if codes := self._covered.get(pattern):
                covered[list(codes)] = True
        mask: Bools = covered[self._slots[0]]
        for slot in self._slots[1:]:
            mask &= covered[slot]
        return mask

    def _take(self, taint: Taint) -> int:
        code = self._codes.take(taint)
        for pattern in patterns(taint):
            self._covered.setdefault(pattern, set()).add(code)
        return code


def tolerates_cordon(tolerations: tuple[Pattern, ...]) -> bool:
    """Return whether tolerations cover the taint of cordoned nodes."""
    return not _CORDON.isdisjoint(tolerations)


def _blocking(taints: Iterable[Taint]) -> list[Taint]:
    return list(dict.fromkeys(taint for taint in taints if taint.blocks))
