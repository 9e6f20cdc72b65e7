"""Asking what may fail: an answer that does not come is a default and a note, never the end of the whole reading."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeVar, TypeVarTuple, cast

from dradriver.node.discovery.problem import Problem
from dradriver.node.vendors.nvidia.discovery import library_sessions
from dradriver.node.vendors.nvidia.discovery.nvml_interface import (
    DEPRECATED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    VERSION_MISMATCH,
    NvmlError,
)

T = TypeVar("T")
_Key = tuple[str, str, str]
Ts = TypeVarTuple("Ts")

# The product has no such thing, or the driver does not tell it any more, which is no problem.
UNSUPPORTED: Final = frozenset({NOT_SUPPORTED, DEPRECATED})
NEWER: Final = UNSUPPORTED | {FUNCTION_NOT_FOUND, VERSION_MISMATCH}  # the same of a thing of newer drivers


STANDS: Final = 60  # readings after which facts are asked for anew: ten minutes


class Answers:
    """The answers that earlier readings got.

    Of every question the last good answer, so that one that fails once changes nothing (``Questions.ask``). And the
    *facts*: answers that cannot change while a session is open, and of a GPU while it answers and stays in its MIG mode
    (``Questions.ask_once``). A driver cannot be replaced below an open session, nor a GPU be reset or leave its bus
    without a new session, or without being called lost. Should that be wrong of a driver to come, ``STANDS`` heals it.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, object] = {}  # the last good answer to each question
        self._facts: dict[_Key, object] = {}  # answers that need not be asked again in this session
        self._while: dict[str, object] = {}  # by GPU: the state in which its facts were learned
        self._session: object = None  # the NVML session of the facts
        self._readings = 0  # readings since the facts were last forgotten

    def begin(self, session: object) -> None:
        """Begin a reading in an NVML session; forget all facts of another session, and those that are old.

        Then what ``library_sessions`` holds is forgotten, too, else the same would be told anew.
        """
        self._readings += 1
        if session is not self._session or self._readings > STANDS:
            self._facts.clear()
            library_sessions.forget()
            self._session, self._readings = session, 0

    def settle(self, who: str, what: str, at: str, fact: object) -> None:
        """Store a fact that an NVML query learned, by who was asked what, and about which part."""
        self._facts[who, what, at] = fact

    def settled(self, who: str, what: str, at: str) -> bool:
        """Return whether a fact is known from an earlier NVML query and need not be asked again."""
        return (who, what, at) in self._facts

    def fact(self, who: str, what: str, at: str, default: T) -> T:
        """Return a fact that an NVML query learned; ``default`` if it is not known."""
        return cast("T", self._facts.get((who, what, at), default))

    def hold_while(self, who: str, state: object) -> None:
        """Forget what NVML queries learned of a GPU, and of its pairs, in another state than this."""
        if self._while.get(who, state) != state:
            self.unsettle({who})
        self._while[who] = state

    def unsettle(self, whose: Collection[str]) -> None:
        """Forget the facts that NVML queries learned of these GPUs, and of their pairs."""
        for key in [key for key in self._facts if not set(key[0].split()).isdisjoint(whose)]:
            del self._facts[key]

    def unsettle_part(self, who: str, at: str) -> None:
        """Forget the facts that NVML queries learned of one part of a GPU."""
        for key in [key for key in self._facts if (key[0], key[2]) == (who, at)]:
            del self._facts[key]

    def keep(self, who: str, what: str, at: str, answer: object) -> None:
        """Store the answer to an NVML query by who was asked what, and about which part."""
        self._known[who, what, at] = answer

    def last(self, who: str, what: str, at: str, default: T) -> T:
        """Return the last good answer to an NVML query, or ``default`` if there never was one."""
        return cast("T", self._known.get((who, what, at), default))

    def forget(self, whose: Collection[str]) -> None:
        """Forget the answers to NVML queries of all GPUs, and pairs of GPUs, but these."""
        for answers in (self._known, self._facts):
            for key in [key for key in answers if "-" in key[0] and not set(key[0].split()) <= set(whose)]:
                del answers[key]
        self._while = {who: state for who, state in self._while.items() if who in whose}


class NvmlQuery:
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
        """Return NVML's answer to a query; if it fails, the last good answer or ``default``.

        A product that does not support the query never answered it, so there is no old answer.

        Args:
            query: A method of ``Nvml``.
            arguments: Its arguments.
            default: What holds where there is no answer.
            quiet: NVML's return values that are no problem here.
            at: The part that is asked about: ``link 5``.
        """
        # A lost GPU is asked nothing more: each call may take long.
        if self.lost:
            return default
        query_name = query.__name__
        try:
            answer = query(*arguments)
        except NvmlError as error:
            self.lost = error.code in (GPU_IS_LOST, RESET_REQUIRED)
            if not self.lost and error.code in quiet:
                return default
            self.failed = True
            self.note(error.query, f"{error.said} ({error.code})", at=at)
            return self._answers.last(self.who, query_name, at, default) if self.who and not self.lost else default
        if self.who:
            self._answers.keep(self.who, query_name, at, answer)
        return answer

    def ask_once(
        self,
        query: Callable[[*Ts], T],
        *arguments: *Ts,
        default: T,
        quiet: frozenset[int] = UNSUPPORTED,
        at: str = "",
        needed: bool = True,
    ) -> T:
        """Return a fact of NVML (``Answers``), by ``ask`` if it is not known; that there is no answer is a fact, too.

        ``needed`` is False of something that nobody needs who has the rest: its failure is noted, and does not count as
        ``failed``.
        """
        if self.who and not self.lost and self._answers.settled(self.who, query.__name__, at):
            return self._answers.fact(self.who, query.__name__, at, default)

        # ``failed`` is of the whole query: set it apart, to see whether this question fails.
        before, self.failed = self.failed, False
        answer = self.ask(query, *arguments, default=default, quiet=quiet, at=at)
        if self.who and not (self.failed or self.lost):
            self._answers.settle(self.who, query.__name__, at, answer)
        self.failed = before or self.lost or (self.failed and needed)
        return answer

    def hold_while(self, state: object) -> None:
        """Forget the NVML facts that were told while the queried GPU was in another state."""
        self._answers.hold_while(self.who, state)

    def unsettle(self, at: str) -> None:
        """Forget the NVML facts about one part of the queried GPU."""
        self._answers.unsettle_part(self.who, at)

    def note(self, what: str, said: str, *, at: str = "") -> None:
        """Note a problem of an NVML query."""
        self._problems.append(Problem(f"{self._where} {at}".rstrip(), what, said))
