"""Queries to NVML that may fail.

If a query fails, an earlier answer or a default is used, a problem is noted, and the reading continues.

Three arguments identify a query. ``who`` is the uuid of the GPU that is asked, or the two uuids of a pair with a blank
between them. ``what`` is the name of the query. ``at`` is the part of the GPU that the query is about, for example
``link 5``; it is empty for the whole GPU.
"""

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
    """The answers of earlier readings.

    There are two kinds of answers:

    * The last good answer to every question. It is used if the question fails later (``NvmlQuery.ask``).
    * *Facts* (``NvmlQuery.ask_once``): answers for which NVML is not asked again. They cannot change while a session is
      open, and while the GPU answers and stays in its MIG mode.

    Facts cannot change because a driver cannot be replaced while a session is open. And a GPU that was reset or left
    the bus needs a new session, or is reported as lost. A future driver may behave in another way. So NVML is asked for
    the facts again after ``STANDS`` readings.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, object] = {}  # the last good answer to each question
        self._facts: dict[_Key, object] = {}  # answers that need not be asked again in this NVML session
        self._while: dict[str, object] = {}  # by GPU: the state in which its facts were learned
        self._session: object = None  # the NVML session of the facts
        self._readings = 0  # readings since the facts were last forgotten

    def begin(self, session: object) -> None:
        """Begin a reading in an NVML session; forget facts of another session, and facts that are too old.

        If facts are forgotten, the answers in ``library_sessions`` are forgotten, too. Otherwise they would be used
        again.
        """
        self._readings += 1
        if session is not self._session or self._readings > STANDS:
            self._facts.clear()
            library_sessions.forget()
            self._session, self._readings = session, 0

    def settle(self, who: str, what: str, at: str, fact: object) -> None:
        """Store ``fact``, an answer for which NVML is not asked again."""
        self._facts[who, what, at] = fact

    def settled(self, who: str, what: str, at: str) -> bool:
        """Return whether the answer to this query is a fact that is already known."""
        return (who, what, at) in self._facts

    def fact(self, who: str, what: str, at: str, default: T) -> T:
        """Return the known fact that answers this query, or ``default`` if it is not known."""
        return cast("T", self._facts.get((who, what, at), default))

    def hold_while(self, who: str, state: object) -> None:
        """Forget the facts of a GPU if its state has changed since they were learned.

        The facts of its pairs with other GPUs are forgotten, too.

        Args:
            who: The GPU's uuid.
            state: The GPU's present state, for example whether its MIG mode is on.
        """
        if self._while.get(who, state) != state:
            self.unsettle({who})
        self._while[who] = state

    def unsettle(self, whose: Collection[str]) -> None:
        """Forget the facts of the GPUs ``whose`` (uuids), and of pairs with them.

        The next reading asks NVML for them again.
        """
        for key in [key for key in self._facts if not set(key[0].split()).isdisjoint(whose)]:
            del self._facts[key]

    def unsettle_part(self, who: str, at: str) -> None:
        """Forget the facts about one part of a GPU, such as ``link 5``."""
        for key in [key for key in self._facts if (key[0], key[2]) == (who, at)]:
            del self._facts[key]

    def keep(self, who: str, what: str, at: str, answer: object) -> None:
        """Store ``answer`` as the last good answer to this query."""
        self._known[who, what, at] = answer

    def last(self, who: str, what: str, at: str, default: T) -> T:
        """Return the last good answer to this query, or ``default`` if there never was one."""
        return cast("T", self._known.get((who, what, at), default))

    def forget(self, whose: Collection[str]) -> None:
        """Forget all answers of GPUs, and of pairs of GPUs, that are not in ``whose``."""
        for answers in (self._known, self._facts):
            for key in [key for key in answers if "-" in key[0] and not set(key[0].split()) <= set(whose)]:
                del answers[key]
        self._while = {who: state for who, state in self._while.items() if who in whose}


class NvmlQuery:
    """Asks NVML about one GPU or one pair of GPUs, and adds failures to ``problems``.

    Attributes:
        who: The key for ``Answers``: a uuid, or two uuids with a blank between them; empty while it is not known.
        lost: True after NVML said that the GPU has fallen off the bus, or cannot be used before a reset. Then it is not
            asked again.
        failed: True after a question failed that should have an answer.
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

        If the product does not support the query, or the GPU is lost, the result is ``default``.

        Args:
            query: A method of ``Nvml``.
            arguments: Its arguments.
            default: The value to use if there is no answer.
            quiet: NVML's return values that are no problem here.
            at: The part of the GPU that the query is about, such as ``link 5``.
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
        """Return a known fact; if it is unknown, call ``ask`` and store its answer.

        A fact is an answer for which NVML is not asked again (see ``Answers``). If the product does not support the
        query, this is a fact, too.

        Args:
            query: A method of ``Nvml``.
            arguments: Its arguments.
            default: The value to use if there is no answer.
            quiet: NVML's return values that are no problem here.
            at: The part of the GPU that the query is about, such as ``link 5``.
            needed: If False, a failure is noted as a problem, but does not set ``failed``.
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
        """Forget the queried GPU's facts if its state has changed since they were learned.

        ``state`` is the present state, for example whether MIG mode is on.
        """
        self._answers.hold_while(self.who, state)

    def unsettle(self, at: str) -> None:
        """Forget the facts about one part of the queried GPU."""
        self._answers.unsettle_part(self.who, at)

    def note(self, what: str, said: str, *, at: str = "") -> None:
        """Add a problem of an NVML query to ``problems``.

        Args:
            what: Name of the query or of the fact.
            said: The answer to the query, and the value that is used instead.
            at: The part of the GPU, such as ``link 5``; empty for the whole GPU.
        """
        self._problems.append(Problem(f"{self._where} {at}".rstrip(), what, said))
