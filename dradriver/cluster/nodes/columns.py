"""Columns: arrays with one value of every node, such as a label's value.

Each node has one row. With columns, a check of all nodes is one comparison of arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dradriver.cluster.nodes.expressions import integer

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_T = TypeVar("_T")
_FEW = 3  # codes that are compared one by one; more are looked up in a table


def grown(array: NDArray[Any], rows: int, fill: float = 0) -> NDArray[Any]:
    """Return a copy of an array of nodes with more entries, filled with a value.

    ``rows`` is the new length, with one entry for each node.
    """
    longer = np.full(rows, fill, array.dtype)
    longer[: len(array)] = array
    return longer


class Codes(Generic[_T]):
    """Small numbers, called codes, for values that come and go, such as label texts.

    The users of a value, for example rows, are counted. A code is free again when its value has no users any more. The
    code 0 stands for no value. Arrays store the codes in place of the values.
    """

    def __init__(self) -> None:
        self._codes: dict[_T, int] = {}
        self._users: list[int] = [0]
        self._free: list[int] = []

    @property
    def size(self) -> int:
        """Return a number that is greater than every code (small number for a value)."""
        return len(self._users)

    def find(self, value: _T) -> int:
        """Return the code (small number) of a value; 0 if the value has no users."""
        return self._codes.get(value, 0)

    def take(self, value: _T, users: int = 1) -> int:
        """Count new users of a value, such as rows, and return the value's code.

        The code is a small number that stands for the value in arrays.
        """
        code = self._codes.get(value)
        if code is None:
            if self._free:
                code = self._free.pop()
            else:
                code = len(self._users)
                self._users.append(0)
            self._codes[value] = code
        self._users[code] += users
        return code

    def release(self, value: _T) -> int:
        """Release a value for one of its users, such as a row.

        A value without users loses its code, the small number that stands for it.

        Returns:
            The code if that was the last user, else 0.
        """
        code = self._codes[value]
        self._users[code] -= 1
        if self._users[code]:
            return 0
        del self._codes[value]
        self._free.append(code)
        return code


class Texts:
    """A column: one text of every node, such as the value of a label.

    A row is the index of a node. A row can have no text.
    """

    def __init__(self, texts: Sequence[str | None]) -> None:
        self._codes: Codes[str] = Codes()
        code = {text: self._codes.take(text, n) for text, n in Counter(texts).items() if text is not None}
        self._rows = np.array([code.get(text, 0) for text in texts], np.int32)  # type: ignore[arg-type]

    def grow(self, rows: int) -> None:
        """Add rows (nodes) without text to the column."""
        self._rows = grown(self._rows, rows)

    def set(self, row: int, old: str | None, new: str | None) -> None:
        """Replace the text of a row (node) by ``new``.

        ``old`` is the text that the row has now. None stands for no text.
        """
        if old is not None:
            self._codes.release(old)
        self._rows[row] = self._codes.take(new) if new is not None else 0

    def present(self) -> Bools:
        """Return which rows (nodes) have a text: one bool for each row."""
        found: Bools = self._rows != 0
        return found

    def among(self, texts: Iterable[str]) -> Bools | None:
        """Return which rows (nodes) have one of the texts: one bool for each row.

        None if no row has one of them.
        """
        codes = {code for text in texts if (code := self._codes.find(text))}
        if not codes:
            return None
        if len(codes) > _FEW:
            chosen = np.zeros(self._codes.size, np.bool_)
            chosen[list(codes)] = True
            mask: Bools = chosen[self._rows]
            return mask
        first, *others = codes
        mask = self._rows == first
        for code in others:
            mask |= self._rows == code
        return mask


class Numbers:
    """A column: one 64-bit number of every node, read from texts such as label values.

    A row (the index of a node) has no number if its text is not a number.
    """

    def __init__(self, texts: Sequence[str | None]) -> None:
        read = [integer(text) for text in texts]
        self._numbers = np.array([number or 0 for number in read], np.int64)
        self._valid = np.array([number is not None for number in read], np.bool_)

    def grow(self, rows: int) -> None:
        """Add rows (nodes) without number to the column."""
        self._numbers, self._valid = grown(self._numbers, rows), grown(self._valid, rows)

    def set(self, row: int, old: str | None, new: str | None) -> None:  # noqa: ARG002 (as Texts)
        """Replace the number of a row (node) by the number in the text ``new``.

        ``old`` is ignored.
        """
        number = integer(new)
        self._numbers[row] = number or 0
        self._valid[row] = number is not None

    def above(self, bound: int) -> Bools:
        """Return which rows (nodes) have a number greater than ``bound``: one bool for each row."""
        found: Bools = (self._numbers > bound) & self._valid
        return found

    def below(self, bound: int) -> Bools:
        """Return which rows (nodes) have a number smaller than ``bound``: one bool for each row."""
        found: Bools = (self._numbers < bound) & self._valid
        return found
