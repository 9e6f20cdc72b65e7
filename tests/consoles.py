"""The sessions in documents: commands, each with what it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tests.paths import REPO

EXAMPLES: Final = REPO / "docs" / "start" / "examples.md"
GANGS: Final = REPO / "docs" / "tasks" / "gangs.md"
INSTALL: Final = REPO / "docs" / "start" / "install.md"
README: Final = REPO / "README.md"
TROUBLESHOOTING: Final = REPO / "docs" / "runbooks" / "troubleshooting.md"
TUTORIAL: Final = REPO / "docs" / "start" / "tutorial.md"
PAGES: Final = (README, EXAMPLES, GANGS, INSTALL, TROUBLESHOOTING, TUTORIAL)  # those that show sessions
LEFT_OUT: Final = "..."  # a line that stands for any lines
# What differs from run to run, and what it is compared as. Names come first: one can end like a time ("-46046d").
_VARIES: Final = (
    (re.compile(r"\bgpus-[a-z2-7]{10}\b"), "CLAIM"),
    (re.compile(r"\b((?:gang-job|second)-\d)-[a-z0-9]{5}\b"), r"\1-POD"),
    (re.compile(r"\b(Pod |by )[a-z0-9-]+/"), r"\1NAMESPACE/"),
    (re.compile(r"\b\d+ (ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\b(\d+(ms|s|m|h|d))+\b"), "TIME"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:]+Z"), "DATE"),
    (re.compile(r"\b\d+\.\d+\.\d+\.\d+\b"), "ADDRESS"),
)


class Command(NamedTuple):
    """A command of a document.

    Attributes:
        line: Where it stands, from 1.
        text: What is typed, for a shell.
        output: The lines that it prints; `LEFT_OUT` stands for any.
    """

    line: int
    text: str
    output: tuple[str, ...]


def commands(document: Path) -> list[Command]:
    """Return the commands of a document's blocks ``console``, in order."""
    found: list[Command] = []
    inside = False
    for number, line in enumerate(document.read_text("utf-8").splitlines(), start=1):
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append(Command(number, line[2:], ()))
        elif inside:
            found[-1] = found[-1]._replace(output=(*found[-1].output, line))
    return found


def differs(command: Command, printed: str) -> str:
    """Return the first line of a command's output that is not printed where it should be; empty if all is."""
    lines, shown = [_compared(line) for line in printed.splitlines()], command.output
    if command.text.startswith("kubectl wait "):  # it names objects in the order in which they met the condition
        lines, shown = sorted(lines), tuple(sorted(shown))
    at, free = 0, False
    for line in shown:
        if line.strip() == LEFT_OUT:
            free = True
            continue
        wanted = _compared(line)
        places = range(at, len(lines) if free else min(at + 1, len(lines)))
        place = next((i for i in places if lines[i] == wanted), None)
        if place is None:
            return line
        at, free = place + 1, False
    return "" if free or at == len(lines) else f"(the end; {lines[at]!r} follows)"


def _compared(line: str) -> str:
    """Return a line without what differs from run to run; columns are as wide as what stands in them."""
    line = " ".join(line.split())
    for form, text in _VARIES:
        line = form.sub(text, line)
    return line
