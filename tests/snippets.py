"""The YAML in documents: blocks in fences, and indented ones."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

MARK = "<!-- yaml: {} -->"

_MARK = re.compile(r" *<!-- yaml: (.+?) -->")
_FENCE = re.compile(r" *```(\w*)")
# How YAML begins, and neither a command, nor its output, nor prose does.
_BEGINS = re.compile(r"(?m)---$|# |(- )?(\{|[\w./\"'-]+:($| [^ ]))")


class Snippet(NamedTuple):
    """A block of YAML.

    Attributes:
        line: Where it begins in its document, from 1.
        text: Without the indentation of the whole.
        mark: What a comment before it says that it is; empty without one.
    """

    line: int
    text: str
    mark: str


def snippets(document: str) -> Iterator[Snippet]:
    """Yield the blocks of YAML in a Markdown document, or in plain text that indents its blocks as Markdown does.

    A fence says what is in it. An indented block, four columns or more after an empty line, is YAML if it begins like
    some; so is one in a fence that says nothing.
    """
    lines = document.splitlines()
    number, mark = 0, ""
    while number < len(lines):
        start, fence = number, _FENCE.match(lines[number])
        if fence is not None:
            number = next(i for i in range(start + 1, len(lines)) if _FENCE.match(lines[i]))
            body, info, first = lines[start + 1 : number], fence[1], start + 2
        elif lines[start].startswith("    ") and not (start and lines[start - 1].strip()):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            number -= 1
            body, info, first = lines[start : number + 1], "", start + 1
        else:
            if lines[start].strip():
                mark = found[1] if (found := _MARK.fullmatch(lines[start])) else ""
            number += 1
            continue
        text = textwrap.dedent("\n".join(body)).strip("\n") + "\n"
        if info == "yaml" or (not info and _BEGINS.match(text)) or mark:
            yield Snippet(first, text, mark)
        number, mark = number + 1, ""
