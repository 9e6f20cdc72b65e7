"""The model of a document: titled sections of blocks. It says what things are; the renderers say how they look.

Text in it is anybody's: each renderer makes it safe for where it goes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class Tone(enum.Enum):
    """What a cell's text means. A colour goes with it, but the text says it, too."""

    PLAIN = "plain"
    SELF = "X"  # the rest are the words of nvidia-smi topo -m, with NV for any number of links
    NV = "NV"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"
    FREE = "free"
    PROMISED = "promised"
    BLOCKED = "blocked"
    OURS = "ours"  # of bars: those to look at, and those to compare them with
    OTHERS = "others"
    ERROR = "error"
    WARNING = "warning"


class Cell(msgspec.Struct, frozen=True):
    """Text and what it means.

    Attributes:
        text: The text.
        tone: What it means.
        swatch: The colour of a picture that it explains, which a page shows before it: a tone, or a series' number.
    """

    text: str
    tone: Tone = Tone.PLAIN
    swatch: Tone | int | None = None


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Attributes:
        title: Its head; a table none of whose columns has one has no head at all.
        number: Whether it holds numbers, which stand on the right.
        detail: Whether text leaves it out, where lines must stay short.
    """

    title: str = ""
    number: bool = False
    detail: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a cell each column; the first cell names the row, and is empty where the row goes on with the one above.

    Nothing is shown of a table without rows.
    """

    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """Lines as they stand; ``verbatim`` ones are aligned by their blanks."""

    lines: tuple[Cell, ...]
    verbatim: bool = False


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a picture says beside a row.

    Attributes:
        text: As much as there is room for is shown.
        more: All that there is to say, where a pointer rests.
        tone: What it means.
        series: The number of a colour of its own, which ``Key`` explains; None without.
    """

    text: str
    more: str
    tone: Tone
    series: int | None = None


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """One way to put the matrix's devices into groups.

    Attributes:
        title: Of all its groups.
        group: Per device the number of its group, None where it is in none.
        names: Per number of a group what there is to say of it.
    """

    title: str
    group: tuple[int | None, ...]
    names: tuple[str, ...]


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """A square of cells; text has the devices as they are numbered, a picture in the order that shows their groups.

    Attributes:
        title: Of the picture.
        devices: The names of rows and columns.
        cells: A row a device.
        further: Columns on the right that only text has: a title and a word for each device.
        order: The devices' positions as a picture has them.
        groupings: Bars beside the picture's rows, the first one outermost.
        marks: Per device what stands left of its row in the picture; empty, or fewer than devices, where nothing does.
        marked: The marks' title.
    """

    title: str
    devices: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    further: tuple[tuple[str, tuple[str, ...]], ...] = ()
    order: tuple[int, ...]
    groupings: tuple[Grouping, ...] = ()
    marks: tuple[Mark, ...] = ()
    marked: str = ""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """Bars on one scale: of each its name, value and tone."""

    title: str
    bars: tuple[tuple[str, float, Tone], ...]


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Panels of bars below each other, each scaled to its largest; text leaves them out."""

    title: str
    panels: tuple[Panel, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a colour stands for, and where it is."""

    series: int
    name: str
    where: str


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The colours of the marks in all pictures; ``heads`` are those of names and places where it is a table."""

    title: str
    heads: tuple[str, str]
    entries: tuple[Entry, ...]


Block = Table | Notes | Matrix | Bars | Key


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks under a title, or under none; ``folded`` names what a page hides until it is asked for."""

    title: str = ""
    folded: str = ""
    blocks: tuple[Block, ...]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """All that one command shows; the title is that of a page or picture."""

    title: str
    sections: tuple[Section, ...]


def words(*texts: str) -> tuple[Cell, ...]:
    """Return plain cells of a document's table."""
    return tuple(Cell(text) for text in texts)


def table(*columns: str, rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a document's table of plain text, without a head if no columns are named."""
    count = len(rows[0]) if rows else 0
    heads = tuple(Column(name) for name in columns) or (Column(),) * count
    return Table(title=title, columns=heads, rows=tuple(words(*row) for row in rows))


def report(*blocks: Block, title: str = "") -> Document:
    """Return a document of one section without a title."""
    return Document(title=title, sections=(Section(blocks=blocks),))
