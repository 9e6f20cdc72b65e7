"""Finds the matrices of ``nvidia-smi topo -m`` in a pasted text, and removes prefixes, colours and line wraps.

People paste terminal output, log lines, quotations and lists. A row is a device's name with a cell after it, anywhere
in a line. The text before it is a prefix: a time stamp, a pod's name, a quotation mark. The header is the line above
the first row that names the first row's GPU. A line that has only pieces of headings and cells is the end of a wrapped
line: of the header if it is before the first row, else of the row before it. ``topo_m_reader`` calls this module and
checks the cells.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from dradriver.topology.machine import PathType
from dradriver.topology.vendors import VENDORS

PATHS: Final = {path.name: path for path in PathType if path is not PathType.SELF} | {"SOC": PathType.SYS}
HEADINGS: Final = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_NAMED: Final = ["X", *PATHS, *(kind.cell for vendor in VENDORS.values() for kind in vendor.kinds)]
_NUMBERED: Final = [vendor.cell for vendor in VENDORS.values()]
_P2P: Final = ("OK", "CNS", "GNS", "TNS", "NS", "U")  # what topo -p2p prints; "OK" first, for an alternation
_WORDS: Final = [*_NAMED, *_NUMBERED, "N/A", *sorted({word for heading in HEADINGS for word in heading.split()})]


def _any(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


_CELL: Final = rf"(?:(?:{_any(_NUMBERED)})[1-9][0-9]?|{_any(_NAMED)})(?![a-z])|(?:{_any(_P2P)})(?!\w)"
_GPU: Final = re.compile(r"(?<![\w./-])GPU[0-9][\w.:-]*(?!\S)")
_ROW: Final = re.compile(rf"(?<![\w.-])(?:GPU|NIC)[0-9]{{1,4}}(?=[ \t]*(?:{_CELL}))")
_OTHER: Final = re.compile(r"[ \t]*([A-Za-z][\w.:-]*)")
_HAS_CELL: Final = re.compile(rf"(?<!\S)(?:{_CELL})")
_HEADER: Final = re.compile(r"(?<![\w.-])GPU[0-9]{1,4}(?=[ \t]*(?:GPU|NIC[0-9]|CPU Affinity|$))")
_LEGEND: Final = re.compile(r"(?:^|[^\w#])([A-Z][A-Z0-9]{0,7}#?)\s+=\s|Legend:")
_COMMAND: Final = re.compile(r"topo\s+(-mp|--matrix_pci|-m|--matrix|-p2p|--p2p)\b")
_MP: Final = ("-mp", "--matrix_pci")
# Colours and titles of terminals; of "[4mGPU0" a web page has eaten the escape character.
_ESCAPE: Final = re.compile(
    r"(?:\x1b|\^\[|\\x1b|\\033|\\e|\u241b)(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\(B)|\[[0-9;]{1,8}m"
)
_INVISIBLE: Final = re.compile("[\u200b-\u200f\u2060\ufeff]")
_BLANK: Final = re.compile(r"[^\S\t]|[|\u2502\"'`]")  # blanks of all kinds, strokes of tables, quotation marks
_GLUE: Final = re.compile(rf"(?:{_CELL})|N/A|[0-9][0-9,-]*")
_PIECE: Final = rf"(?:{_any(_WORDS)}|(?:GPU|NIC)[0-9]|[0-9,-])*"
_FIRST: Final = re.compile(rf"(?:{_any({word[i:] for word in _WORDS for i in range(1, len(word))})})?{_PIECE}")
_MIDDLE: Final = re.compile(_PIECE)
_LAST: Final = re.compile(rf"{_PIECE}(?:{_any({word[:i] for word in _WORDS for i in range(1, len(word))})})?")


class Line(msgspec.Struct, frozen=True):
    """A line of a matrix, joined from one or several lines of the text.

    Attributes:
        text: The text of the line.
        parts: For each line of the text: the offset in ``text`` at which it begins, its line and its column. Lines and
            columns count from 1, without colour codes.
    """

    text: str
    parts: tuple[tuple[int, int, int], ...]

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column in the pasted text of a character of ``text``.

        ``at`` is the character's offset in ``text``.
        """
        offset, line, column = self.parts[bisect.bisect_right(self.parts, at, key=lambda part: part[0]) - 1]
        return line, column + at - offset


class Entry(msgspec.Struct):
    """The header or a row of a matrix.

    If it was wrapped, it has several lines.

    Attributes:
        start: The first line, from the first device's name on.
        whole: The same line, including the text before that name.
        rest: The further lines.
    """

    start: Line
    whole: str
    rest: list[Line] = []


class PastedMatrix(msgspec.Struct):
    """A matrix in a text.

    Attributes:
        header: The header.
        rows: The rows in the text's order; empty if there is only a header.
        strays: Lines among the rows that have cells but no device's name.
        after: Index of the first line after the matrix.
        legend: The terms that the legend below the matrix explains, with the line of each.
        command: The last command above the matrix, ``topo -m`` or similar, with line and column.
    """

    header: Entry
    rows: list[Entry] = []
    strays: list[Line] = []
    after: int = 0
    legend: dict[str, int] = {}
    command: tuple[str, int, int] | None = None

    @property
    def wrapped(self) -> Line | None:
        """Return the second line of the first row or header that was wrapped.

        The result is None if no line was wrapped.
        """
        rests = (line for entry in (self.header, *self.rows) for line in entry.rest)
        return min(rests, key=lambda line: line.parts[0][1], default=None)

    @property
    def p2p(self) -> tuple[int, int] | None:
        """Return line and column of a sign that ``topo -p2p`` printed the matrix, instead of ``topo -m``.

        The result is None if there is no sign.
        """
        for row in self.rows:
            for match in re.finditer(r"\S+", row.start.text):
                if match[0] in _P2P:
                    return row.start.place(match.start())
        told = next((line for key, line in self.legend.items() if key in _P2P), None)
        if told is not None:
            return told, 1
        return self.command[1:] if self.command and "p2p" in self.command[0] else None

    @property
    def is_mp(self) -> bool:
        """Return whether the command above the pasted matrix is ``topo -mp``.

        The matrix of that command shows no links, so it does not describe the machine.
        """
        return self.command is not None and self.command[0] in _MP


def lines_of(text: str) -> list[str]:
    """Return the lines of a pasted text without colour codes; tabs are kept.

    All other blanks, quotation marks and the borders of tables become plain blanks.
    """
    plain = re.sub(r"\r*\n|\r", "\n", _INVISIBLE.sub("", _ESCAPE.sub("", text)))
    return [_BLANK.sub(" ", line) for line in plain.removesuffix("\n").split("\n")]


def is_matrix(text: str) -> bool:
    """Return whether a pasted text has a row or a header of ``nvidia-smi topo -m``."""
    return any(
        _ROW.search(line) or _HEADER.match(line.lstrip()) or re.match(r"\s*GPU[0-9]", line) for line in lines_of(text)
    )


def glued(word: str, names: Iterable[str] = ()) -> list[str]:
    """Return the words that follow each other in ``word`` without a blank or tab.

    For example, ``GPU0GPU1`` gives ``GPU0`` and ``GPU1``. The result is empty if ``word`` does not consist of two or
    more known words.

    Args:
        word: The text.
        names: The known words: devices and headings. If it is empty, the words of cells are used.
    """
    known = sorted({*names}, key=len, reverse=True)
    pattern = re.compile(rf"{_any(known)}|(?:GPU|NIC)[0-9]+") if known else _GLUE
    parts = [match[0] for match in pattern.finditer(word)]
    return parts if len(parts) > 1 and "".join(parts) == word else []


def matrices(lines: Sequence[str]) -> list[PastedMatrix]:
    """Return all matrices of a pasted text, from the top."""
    found: list[PastedMatrix] = []
    after = 0
    while after < len(lines):
        head = _header(lines, after)
        if head is None:
            break
        matrix = _matrix(lines, head)
        matrix.command = _command(lines, after, head)
        found.append(matrix)
        after = matrix.after
    ends = [*(matrix.header.start.parts[0][1] - 1 for matrix in found[1:]), len(lines)]
    for matrix, end in zip(found, ends, strict=False):
        told = ((_LEGEND.search(lines[at]), at + 1) for at in range(matrix.after, end))
        matrix.legend = {match[1]: number for match, number in told if match and match[1]}
    return found


def row_without_header(lines: Sequence[str]) -> tuple[int, int]:
    """Return line and column of the first row in a pasted text that has no header.

    The result is (1, 1) if the text has no row either.
    """
    starts = ((number, match.start() + 1) for number, line in enumerate(lines, 1) if (match := _ROW.search(line)))
    return next(starts, (1, 1))


def joins() -> list[Callable[[PastedMatrix], Callable[[Entry], Line]]]:
    """Return the functions that join the lines of rows that were wrapped.

    There are three: without a blank, by the terminal's width, and with a blank. Each gets the matrix and returns the
    function that joins one row. The caller tries all of them, because a text does not show which one is right.
    """
    return [
        lambda _: lambda entry: _join(entry, lambda _: ""),
        _by_width,
        lambda _: lambda entry: _join(entry, " ".format),
    ]


def _by_width(matrix: PastedMatrix) -> Callable[[Entry], Line]:
    """Return a function that joins lines that a terminal broke at its width.

    A line that is shorter than the terminal has lost the blanks at its end, so a blank is put in.
    """
    entries = [entry for entry in (matrix.header, *matrix.rows) if entry.rest]
    broken = [line for entry in entries for line in (entry.whole, *(rest.text for rest in entry.rest[:-1]))]
    width = max((len(line.expandtabs()) for line in broken), default=0)
    return lambda entry: _join(entry, lambda line: "" if len(line.expandtabs()) == width else " ")


def _join(entry: Entry, between: Callable[[str], str]) -> Line:
    text, parts, last = entry.start.text, list(entry.start.parts), entry.whole
    for line in entry.rest:
        text += between(last)
        parts.append((len(text), *line.parts[0][1:]))
        text, last = text + line.text, line.text
    return Line(text, tuple(parts))


def _header(lines: Sequence[str], after: int) -> int | None:
    """Return the index of the first header line at or after line ``after``.

    The result is None if there is no header. A header is followed by its rows. If ``after`` is 0 and the text has no
    rows, a header alone also counts.
    """
    above: list[int] = []  # lines that name a GPU and are no row
    for at in range(after, len(lines)):
        row = _ROW.search(lines[at])
        if row is None:
            above += [at] if _GPU.search(lines[at]) else []
        elif above and not row[0].startswith("NIC"):
            same = re.compile(rf"(?<![\w.-]){row[0]}(?![0-9])")
            return next((n for n in reversed(above) if same.search(lines[n])), above[-1])
    return None if after else next((n for n, line in enumerate(lines) if _HEADER.search(line)), None)


def _matrix(lines: Sequence[str], head: int) -> PastedMatrix:
    """Return the lines of one matrix in a pasted text; each wrapped line is joined to its row or header.

    Lines can have a prefix, for example a log's time or a quotation mark. If a line begins with the prefix of the row
    before, the prefix is cut off. For each line below the header, the first case that fits is used:

    1. The line has no word: it is a gap.
    2. It follows a row, and begins a legend or another header: the matrix ends before it.
    3. It is a row, see ``_row_start``.
    4. No row was found yet: it is the end of a wrapped header.
    5. It has only pieces of headings and cells: it is the end of a wrapped row. That does not hold after the last
       device's row and a gap.
    6. It follows the last device's row: the matrix ends before it.
    7. It has a cell: it is a stray line, which is refused later, because a row may have lost its device's name.
    8. It is other text, such as a line of a log: it is ignored.

    Args:
        lines: All lines of the text.
        head: The index of the header line.
    """
    # The content of a line begins with its first device's name. The text before it is the prefix.
    first = _GPU.search(lines[head])
    header_line = _line_from(lines, head, first.start() if first else 0)
    matrix = PastedMatrix(header=Entry(header_line, lines[head]), after=len(lines))
    device_names = _device_names(header_line)
    prefix = lines[head][: first.start()].strip() if first else ""
    is_after_gap = False
    for at in range(head + 1, len(lines)):
        line = lines[at]
        content_start = line.find(prefix) + len(prefix) if prefix and line.lstrip().startswith(prefix) else 0
        content = _line_from(lines, at, content_start)
        if not re.search(r"\w", content.text):
            is_after_gap = True
            continue
        if matrix.rows and (_LEGEND.search(line) or _HEADER.search(line)):
            matrix.after = at
            break
        row_start = _row_start(line, device_names)
        if row_start is not None:
            matrix.rows.append(Entry(_line_from(lines, at, row_start), line))
            prefix = line[:row_start].strip()
        elif not matrix.rows:
            matrix.header.rest.append(content)
            device_names |= _device_names(content)
        elif _is_continuation(content.text) and not (is_after_gap and _has_all_rows(matrix, device_names)):
            matrix.rows[-1].rest.append(content)
        elif _has_all_rows(matrix, device_names):
            matrix.after = at
            break
        elif _HAS_CELL.search(line):
            matrix.strays.append(content)
        is_after_gap = False
    return matrix


def _device_names(header: Line) -> set[str]:
    """Return the names of devices in a header, or in the end of a wrapped header.

    All words that are not headings are names.
    """
    heading_words = {word for heading in HEADINGS for word in heading.split()}
    return set(header.text.split()) - heading_words


def _has_all_rows(matrix: PastedMatrix, names: set[str]) -> bool:
    """Return whether the matrix has as many rows as the header's first line has devices."""
    devices = [name for name in re.findall(r"\S+", matrix.header.start.text) if name in names]
    return len(matrix.rows) >= len(devices)


def _line_from(lines: Sequence[str], at: int, start: int) -> Line:
    return Line(lines[at][start:], ((0, at + 1, start + 1),))


def _row_start(line: str, names: set[str]) -> int | None:
    """Return the offset at which a row begins in a line: where its device's name begins.

    A cell must follow the name. The result is None if the line is not a row.

    Args:
        line: The line, with its prefix.
        names: The devices' names in the header. Some drivers' headers lack the names of some cards.
    """
    row = _ROW.search(line)
    if row is not None:
        return row.start()
    first = None
    for word in re.finditer(r"\S+", line):
        if word[0] in names or re.fullmatch("(GPU|NIC)[0-9]{1,4}", word[0]):
            first = word.start()
        elif _HAS_CELL.match(word[0]):
            break
    else:
        return None
    # The row of a card whose name is not in the header: a word that is no piece of a heading, then only cells.
    unknown = _OTHER.match(line)
    if first is None and unknown and not _FIRST.fullmatch(unknown[1]) and _is_continuation(line[unknown.end(1) :]):
        return unknown.start(1)
    return first


def _is_continuation(text: str) -> bool:
    """Return whether a line has only pieces of a matrix's headings and cells.

    A line of this kind is the end of a line that a terminal wrapped.
    """
    first, *others = text.split() or [""]
    *middle, last = others or [""]
    forms = [(_FIRST, first), *((_MIDDLE, word) for word in middle), (_LAST, last)]
    return all(form.fullmatch(word) for form, word in forms)


def _command(lines: Sequence[str], after: int, head: int) -> tuple[str, int, int] | None:
    """Return the last command between the lines ``after`` and ``head``, with line and column.

    The result is None if there is no command.
    """
    commands = (
        (match[1], at + 1, match.start() + 1) for at in range(after, head + 1) for match in _COMMAND.finditer(lines[at])
    )
    return next(iter(reversed(list(commands))), None)
