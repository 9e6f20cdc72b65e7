"""Asking what may fail: an answer that does not come is a default and a note, never the end of the whole reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import msgspec

from dradriver.node.discovery.nvml import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    VERSION_MISMATCH,
    NvmlError,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

UNSUPPORTED: Final = frozenset({NOT_SUPPORTED})  # the product has no such thing, which is no problem
NEWER: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH})  # the same of a thing of newer drivers


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be read, or contradicts itself.

    Attributes:
        where: ``GPU 3``, ``GPU 0 - GPU 3``, ``GPU 3 link 5``, ``NIC mlx5_0`` or ``machine``.
        what: Name of the query, or what was looked at.
        said: What came instead, and what was made of it.
    """

    where: str
    what: str
    said: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.said}"


class Questions:
    """Questions about one thing; what went wrong is added to ``problems``.

    Attributes:
        lost: True once NVML said that the GPU has fallen off the bus, or is of no use before a reset: it is not asked
            again.
        failed: True once a question failed that should have an answer.
    """

    def __init__(self, where: str, problems: list[Problem]) -> None:
        self._where = where
        self._problems = problems
        self.lost = False
        self.failed = False

    def ask(
        self, query: Callable[[*Ts], T], *arguments: *Ts, default: T, quiet: frozenset[int] = UNSUPPORTED, at: str = ""
    ) -> T:
        """Return the answer, or ``default`` without one.

        Args:
            query: A method of ``Nvml``.
            arguments: Its arguments.
            default: What holds where there is no answer.
            quiet: NVML's return values that are no problem here.
            at: The part that is asked about: ``link 5``.
        """
        if self.lost:
            return default
        try:
            return query(*arguments)
        except NvmlError as error:
            self.lost = error.code in (GPU_IS_LOST, RESET_REQUIRED)
            if self.lost or error.code not in quiet:
                self.failed = True
                self.note(error.query, f"{error.said} ({error.code})", at=at)
            return default

    def note(self, what: str, said: str, *, at: str = "") -> None:
        """Remember a problem."""
        self._problems.append(Problem(f"{self._where} {at}".rstrip(), what, said))
