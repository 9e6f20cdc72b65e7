"""One value of every node as an array with an entry a row, so that a question to all nodes is one comparison."""

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
    """Return a copy of a column of nodes with more rows, filled with a value."""
    longer = np.full(rows, fill, array.dtype)
    longer[: len(array)] = array
    return longer


class Codes(Generic[_T]):
    """Small numbers for values that come and go. The last user of a value gives its number back; 0 is no value."""

    def __init__(self) -> None:
        self._codes: dict[_T, int] = {}
        self._users: list[int] = [0]
        self._free: list[int] = []

    @property
    def size(self) -> int:
        """Return a number that all codes of values in the column are less than."""
        return len(self._users)

    def find(self, value: _T) -> int:
        """Return the code of a column's value; 0 if no row uses it."""
        return self._codes.get(value, 0)

    def take(self, value: _T, users: int = 1) -> int:
        """Add users of a column's value and return its code."""
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

    def give(self, value: _T) -> int:
        """Remove one user of a column's value. Returns the code if it was the last, else 0."""
        code = self._codes[value]
        self._users[code] -= 1
        if self._users[code]:
            return 0
        del self._codes[value]
        self._free.append(code)
        return code


class Texts:
    """Which text each row has, if any."""

    def __init__(self, texts: Sequence[str | None]) -> None:
        self._codes: Codes[str] = Codes()
        code = {text: self._codes.take(text, n) for text, n in Counter(texts).items() if text is not None}
        self._rows = np.array([code.get(text, 0) for text in texts], np.int32)  # type: ignore[arg-type]

    def grow(self, rows: int) -> None:
        """Add rows without text to a column of texts."""
        self._rows = grown(self._rows, rows)

    def set(self, row: int, old: str | None, new: str | None) -> None:
        """Replace the text of a row in a column; ``old`` is the one it has."""
        if old is not None:
            self._codes.give(old)
        self._rows[row] = self._codes.take(new) if new is not None else 0

    def present(self) -> Bools:
        """Return the rows of a column that have a text: shape (rows,)."""
        found: Bools = self._rows != 0
        return found

    def among(self, texts: Iterable[str]) -> Bools | None:
        """Return the rows of a column that have one of the texts: shape (rows,). None if there is none."""
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
    """Which 64-bit number each row's text is, if it is one."""

    def __init__(self, texts: Sequence[str | None]) -> None:
        read = [integer(text) for text in texts]
        self._numbers = np.array([number or 0 for number in read], np.int64)
        self._valid = np.array([number is not None for number in read], np.bool_)

    def grow(self, rows: int) -> None:
        """Add rows without number to a column of numbers."""
        self._numbers, self._valid = grown(self._numbers, rows), grown(self._valid, rows)

    def set(self, row: int, old: str | None, new: str | None) -> None:  # noqa: ARG002 (as Texts)
        """Replace the number of a row in a column by that of its text."""
        number = integer(new)
        self._numbers[row] = number or 0
        self._valid[row] = number is not None

    def above(self, bound: int) -> Bools:
        """Return the rows of a column with a greater number: shape (rows,)."""
        found: Bools = (self._numbers > bound) & self._valid
        return found

    def below(self, bound: int) -> Bools:
        """Return the rows of a column with a lesser number: shape (rows,)."""
        found: Bools = (self._numbers < bound) & self._valid
        return found
