"""Check the prose of README, docs and the other pages: sentences, paragraphs, phrases, private vocabulary.

Usage: python -m docs.prose [PAGE...]

Prints `page:line: what is wrong`, and ends with status 1 if there is anything. Without pages it checks all. What is
code, generated or a heading is not looked at; of tables only phrases and vocabulary are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
MOST_WORDS: Final = 30  # of a sentence
MOST_CHARACTERS: Final = 700  # of a paragraph: five lines of 140
# Written by programs or others; renamed.md lists the old vocabulary.
LEFT_OUT: Final = frozenset(
    {
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "docs/reference/commands.md",
        "docs/reference/messages.md",
        "docs/reference/metrics.md",
        "docs/reference/renamed.md",
    }
)

# Each with what to write instead. Code is taken out before they are looked for.
_PHRASES: Final = {
    r"who(m)?ever|whatever": "name the actor",
    r"nobody|somebody|everybody": "name the program, the person or the pod",
    r"anew": "again",
    r"beside": "next to, or in addition to",
    r"mend(s|ed|ing)?": "repair",
    r"ill|sick": "unhealthy",
    r"(is|are|was|were) had": "name who has it",
    r"(?<!there )is none": "there is no ..., or: does not",
    r"as is": "say what it is as",
    r"such an?": "a ... of this kind, or: this",
    r"so that it may be that": "so",
    r"by then": "name the time",
    r"thereof": "of it",
}
_VOCABULARY: Final = {
    r"(our|pods?'s?|its|no|new|bad|with|without|these|those) words?|words? of (ours|pods|this driver)": "annotation",
    r"(a|the|each|one|another|that|waiting|blocked) units?(?! tests?)": "workload",
    r"seats?|seated": "gang barrier",
    r"promise[sd]?": "tentative placement",
    r"holders?": "the pod that uses the GPU",
    r"picture of the cluster|on one picture": "cluster cache",
    r"books?": "accounting",
    r"wish(es)?": "request",
    r"(its|their|whose) turns?": "position in the queue",
    r"lift(s|ed|ing)?": "remove the scheduling gate",
    r"(g[ai]v(e|es|en|ing)|t[ao]k(e|es|en|ing)|took) back": "release, or revoke",
    r"withdr(aw|aws|awn|ew|awing)": "release, or revoke",
    r"rungs?": "fallback level",
    r"ladders?": "list of alternatives",
    r"ledgers?": "the driver that allocates the devices",
    r"shun(s|ned)?": "say what it is",
}
_RULES: Final = tuple(
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead) for pattern, instead in (_PHRASES | _VOCABULARY).items()
)
# "What machines lack: ..." is a label, no sentence.
_BEGINNING: Final = re.compile(r"(Of|Whose|Who|What|Where)\b(?![^.:]{1,60}:)")
_FENCE: Final = re.compile(r" *(```|~~~)")
_NO_PROSE: Final = re.compile(r"#+ |\[[^\]]+\]: | *</?\w")  # a heading, the definition of a link, HTML
_ITEM: Final = re.compile(r" *(?:[*+-]|\d+\.) +")
_CODE: Final = re.compile(r"(`+).+?\1|https?://\S+", re.DOTALL)
_NAME_ALONE: Final = re.compile(r"(?<=\| )[\w.]+(?= \|)")  # a cell that has only the name of something
_PATH: Final = re.compile(r"\[[\w./-]+\.\w+\]")
_CODE_ALONE: Final = re.compile(r" ?\(X(?:,\s+X)*\)")  # after code became X
_LINKS_ALONE: Final = re.compile(r" ?\((?:\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])(?:, | and )?)+\)")
_LINK: Final = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])?")
_END: Final = re.compile(r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\betc\.)(?<!\.\.)(?<=[.!?])[)*\"]*\s+")
_WORD: Final = re.compile(r"[^\W_][\w'.,/-]*")
_GENERATED_TABLE: Final = re.compile(r"<!-- Written by make reference\. -->\n\n(?:\|.*\n)+")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)


class Finding(NamedTuple):
    """A place that does not read well.

    Attributes:
        line: Where it stands, from 1.
        message: What is wrong there.
    """

    line: int
    message: str


class _Block(NamedTuple):
    line: int
    text: str
    is_table: bool


def findings(text: str) -> Iterator[Finding]:
    """Yield what is wrong with a page's prose, in the order of its lines."""
    for block in _blocks(text):
        yield from sorted(_of_block(block), key=lambda finding: finding.line)


def _of_block(block: _Block) -> Iterator[Finding]:
    """Yield what is wrong with a paragraph, a list item or a table."""
    readable = _readable(block.text)
    for pattern, instead in _RULES:
        for match in pattern.finditer(readable):
            yield Finding(block.line + readable.count("\n", 0, match.start()), f'"{match[0]}": {instead}')
    if block.is_table:
        return
    if len(readable) > MOST_CHARACTERS:
        yield Finding(block.line, f"a paragraph of {len(readable)} characters: at most {MOST_CHARACTERS}")
    position = 0
    for sentence in _END.split(readable):
        position = readable.index(sentence, position)
        line = block.line + readable.count("\n", 0, position)
        words = len(_WORD.findall(sentence))
        if words > MOST_WORDS:
            yield Finding(line, f"a sentence of {words} words: at most {MOST_WORDS}")
        begins = _BEGINNING.match(sentence.lstrip("*(\"'"))
        if begins and not sentence.rstrip().endswith("?"):
            yield Finding(line, f'a sentence that begins with "{begins[1]}": subject, verb, object')


def _blocks(text: str) -> Iterator[_Block]:
    """Yield paragraphs, list items and tables; without code, headings, comments and definitions of links."""
    for unread in (_GENERATED_TABLE, _COMMENT):
        text = unread.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines: list[str] = []
    begins, fence, is_list = 0, "", False

    def ended() -> Iterator[_Block]:
        if lines:
            yield _Block(begins, "\n".join(lines), lines[0].lstrip().startswith("|"))
            lines.clear()

    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if fence or mark:
            yield from ended()
            fence = "" if fence and mark and mark[1] == fence else fence or (mark[1] if mark else "")
            continue
        item = _ITEM.match(line)
        is_code = not lines and line.startswith("      " if is_list else "    ") and not item
        if not line.strip() or _NO_PROSE.match(line) or is_code:
            yield from ended()
            continue
        is_table = line.lstrip().startswith("|")
        if item or (lines and is_table != lines[0].lstrip().startswith("|")):
            yield from ended()
        if not lines:
            begins = number
            is_list = bool(item) or (is_list and line.startswith(" "))
        lines.append(_ITEM.sub("", line, count=1) if item else line.strip())
    yield from ended()


def _readable(text: str) -> str:
    """Return a block without code and links, with as many lines; code counts as one word."""

    def same_lines(match: re.Match[str], replacement: str) -> str:
        return replacement + "\n" * (match[0].count("\n") - replacement.count("\n"))

    text = _PATH.sub("[X]", _NAME_ALONE.sub("X", text))
    text = _LINKS_ALONE.sub(lambda match: same_lines(match, ""), text)
    text = _CODE.sub(lambda match: same_lines(match, "X"), text)
    text = _CODE_ALONE.sub(lambda match: same_lines(match, ""), text)
    return _LINK.sub(lambda match: same_lines(match, match[1]), text).replace("**", "")


def pages() -> list[str]:
    """Return the pages that are checked, as paths from the repository's root."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted({path.relative_to(ROOT).as_posix() for path in files} - LEFT_OUT)


def main(arguments: Sequence[str] = ()) -> int:
    """Print what is wrong with the pages, and return the exit status."""
    status = 0
    for page in arguments or pages():
        for finding in findings((ROOT / page).read_text("utf-8")):
            print(f"{page}:{finding.line}: {finding.message}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
