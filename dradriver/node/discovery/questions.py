"""Asking what may fail: an answer that does not come is a default and a note, never the end of the whole reading."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeVar, TypeVarTuple, cast

import msgspec

from dradriver.node.discovery.nvml import (
    DEPRECATED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    VERSION_MISMATCH,
    NvmlError,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# The product has no such thing, or the driver does not tell it any more, which is no problem.
UNSUPPORTED: Final = frozenset({NOT_SUPPORTED, DEPRECATED})
NEWER: Final = UNSUPPORTED | {FUNCTION_NOT_FOUND, VERSION_MISMATCH}  # the same of a thing of newer drivers


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


class Answers:
    """The last good answers, so that one question that fails once changes nothing: see ``Questions.ask``."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], object] = {}

    def keep(self, who: str, what: str, at: str, answer: object) -> None:
        """Remember an answer by who was asked what, and about which part."""
        self._known[who, what, at] = answer

    def known(self, who: str, what: str, at: str) -> bool:
        """Return whether there ever was a good answer."""
        return (who, what, at) in self._known

    def last(self, who: str, what: str, at: str, default: T) -> T:
        """Return the last good answer, or ``default`` where there never was one."""
        return cast("T", self._known.get((who, what, at), default))

    def forget(self, whose: Collection[str]) -> None:
        """Forget the GPUs, and pairs of GPUs, that are not among these."""
        gone = [key for key in self._known if "-" in key[0] and not set(key[0].split()) <= set(whose)]
        for key in gone:
            del self._known[key]


class Questions:
    """Questions about one thing; what went wrong is added to ``problems``.

    Attributes:
        who: The identity of who is asked, for ``Answers``: a uuid, or two with a blank; empty while it is not known.
        lost: True once NVML said that the GPU has fallen off the bus, or is of no use before a reset: it is not asked
            again.
        failed: True once a question failed that should have an answer.
    """

    def __init__(self, where: str, problems: list[Problem], answers: Answers | None = None, *, who: str = "") -> None:
        self._where = where
        self._problems = problems
        self._answers = answers or Answers()
        self.who = who
        self.lost = False
        self.failed = False

    def ask(
        self, query: Callable[[*Ts], T], *arguments: *Ts, default: T, quiet: frozenset[int] = UNSUPPORTED, at: str = ""
    ) -> T:
        """Return the answer; where it fails, the last good one; ``default`` without any.

        A product that does not know the question never answered it, so it is told nothing old.

        Args:
            query: A method of ``Nvml``.
            arguments: Its arguments.
            default: What holds where there is no answer.
            quiet: NVML's return values that are no problem here.
            at: The part that is asked about: ``link 5``.
        """
        if self.lost:
            return default
        what = query.__name__
        try:
            answer = query(*arguments)
        except NvmlError as error:
            self.lost = error.code in (GPU_IS_LOST, RESET_REQUIRED)
            if not self.lost and error.code in quiet:
                return default
            self.failed = True
            self.note(error.query, f"{error.said} ({error.code})", at=at)
            return self._answers.last(self.who, what, at, default) if self.who and not self.lost else default
        if self.who:
            self._answers.keep(self.who, what, at, answer)
        return answer

    def ask_once(
        self, query: Callable[[*Ts], T], *arguments: *Ts, default: T, quiet: frozenset[int] = UNSUPPORTED, at: str = ""
    ) -> T:
        """Return the answer as ``ask`` does, of a question whose answer never changes: the first good one stands.

        It is of something that nobody needs who has the rest: its failure is noted, and does not count as ``failed``.
        """
        if self.who and self._answers.known(self.who, query.__name__, at):
            return self._answers.last(self.who, query.__name__, at, default)
        before = self.failed
        answer = self.ask(query, *arguments, default=default, quiet=quiet, at=at)
        self.failed = before or self.lost
        return answer

    def note(self, what: str, said: str, *, at: str = "") -> None:
        """Remember a problem."""
        self._problems.append(Problem(f"{self._where} {at}".rstrip(), what, said))
