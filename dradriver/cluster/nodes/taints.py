"""Finds the nodes whose taints a list of tolerations covers, by arrays of taints.

A toleration is read as one pattern: a key or any key, an effect or any effect, a value or any value. So at most eight
patterns cover a taint. The taints that a toleration covers are found by one look-up, however many taints exist.

A *row* is the index of a node in all arrays of nodes. A *cordoned* node accepts no new pods (``kubectl cordon``).
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
    """Return a toleration as a pattern of key, effect and value.

    An empty key or effect stands for any. A pattern without a value covers every value. None if the toleration covers
    no taint that keeps pods away.
    """
    if effect not in _BLOCKING or operator not in ("", "Equal", "Exists"):
        return None
    return (key, effect) if operator == "Exists" else (key, effect, value)


def patterns(taint: Taint) -> list[Pattern]:
    """Return all patterns (key, effect and value) of tolerations that cover a taint."""
    pairs = {(key, effect) for key in ("", taint.key) for effect in ("", taint.effect)}
    return [*pairs, *((key, effect, taint.value) for key, effect in pairs)]


_CORDON: Final = frozenset(patterns(Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")))


class Taints:
    """The taints of every node that keep pods away, and the cordoned nodes.

    A row is the index of a node.
    """

    def __init__(self) -> None:
        self.cordoned: Bools = np.zeros(0, np.bool_)
        self._codes: Codes[Taint] = Codes()
        self._covered: dict[Pattern, set[int]] = {}  # codes of the taints that a pattern covers
        self._slots = [np.zeros(0, np.intp)]  # the code of each row's first taint, of its second, …

    def grow(self, rows: int) -> None:
        """Add rows (nodes) without taints."""
        self.cordoned = grown(self.cordoned, rows)
        self._slots = [grown(codes, rows) for codes in self._slots]

    def set(self, row: int, old: Iterable[Taint], new: Iterable[Taint], *, cordoned: bool) -> None:
        """Replace the taints of a node, and set whether it is cordoned.

        ``row`` is the node's index. ``old`` are its taints before, ``new`` its taints now.
        """
        for taint in _blocking(old):
            if code := self._codes.release(taint):
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
        """Return the nodes whose taints are all covered by the tolerations.

        A cordon is not checked. The result has one bool for each row (a node's index).
        """
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
