"""Findings of the checker: places in an NCCL topology file that break a rule."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

import msgspec

from dradriver.topology.nccl.checker_rules import RULES

_MOST_PLACES = 50  # of one rule that are written down
_MOST_LETTERS = 200  # of what stands in the file


class Finding(msgspec.Struct, frozen=True):
    """One place of a topology file that breaks a rule of the checker.

    Attributes:
        line: The line, from 1.
        column: The column in characters (not bytes), from 1.
        rule: The rule's name in ``RULES``.
        problem: The text at that place, and what NCCL does with it.
        cure: What to write instead.
    """

    line: int
    column: int
    rule: str
    problem: str
    cure: str

    @property
    def error(self) -> bool:
        """Return whether NCCL refuses or misreads the file because of the finding.

        The result is False if NCCL accepts the file, but the mistake can do harm.
        """
        return RULES[self.rule].error


class Notes:
    """A collector of findings.

    An error that every element of a file repeats becomes one finding with a count. At most fifty places of each rule
    become findings. All further places of the rule become one more finding, because a file of 1 MB can have 450,000
    mistakes.
    """

    def __init__(self) -> None:
        self._of_rule: Counter[str] = Counter()
        self._found: list[Finding] = []
        self._times: dict[str, list[int]] = {}  # key: position in _found, number of places

    def add(self, rule: str, place: tuple[int, int], *, once: str = "", **words: object) -> None:
        """Report that the file breaks ``rule`` at ``place``.

        Args:
            rule: Name in ``RULES``.
            place: Line and column.
            once: A key, or empty. Of all places with the same key only the first becomes a finding; the others are
                counted.
            words: The values for the placeholders, such as ``{text}``, in the rule's text.
        """
        if once not in self._times and self._of_rule[rule] >= _MOST_PLACES:
            once = f"more {rule}"
        if once in self._times:
            self._times[once][1] += 1
            return
        if once:
            self._times[once] = [len(self._found), 1]
        self._of_rule[rule] += 1
        self._found.append(finding(rule, place, **words))

    def findings(self) -> list[Finding]:
        """Return all findings in the order in which they were added.

        A finding that stands for several places has their number in its text.
        """
        findings = list(self._found)
        for position, times in self._times.values():
            if times > 1:
                old = findings[position]
                findings[position] = msgspec.structs.replace(old, problem=f"{old.problem} ({times} places)")
        return findings


def finding(rule: str, place: tuple[int, int], **words: object) -> Finding:
    """Return the finding that the file breaks ``rule`` at ``place`` (line and column).

    ``words`` are the values for the placeholders, such as ``{text}``, in the rule's text.
    """
    wording = RULES[rule]
    for name, word in words.items():
        if isinstance(word, str) and len(word) > _MOST_LETTERS:
            words[name] = f"{word[:_MOST_LETTERS]}…"
    return Finding(*place, rule, wording.problem.format(**words), wording.cure.format(**words))


class Lines:
    """Converts offsets in a text to lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(i + 1 for i, letter in enumerate(text) if letter == "\n")]

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column, from 1, of the character at offset ``at`` of the checked file."""
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1
