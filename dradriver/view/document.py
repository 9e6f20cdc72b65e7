"""The model of a document: titled sections of blocks. It has the content; the renderers decide how it looks.

A text can come from any user of the cluster. So each renderer escapes texts for its own format.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class Tone(enum.Enum):
    """The meaning of a text, such as free or blocked, which selects its colour.

    The text must be clear without the colour, too.
    """

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
    """A text of a document with its meaning, which selects its colour.

    Attributes:
        text: The text.
        tone: The meaning of the text.
        swatch: The colour that the cell explains, for example in a legend: a tone, or a number of ``palette.series``. A
            page shows this colour before the text. None if the cell explains no colour.
    """

    text: str
    tone: Tone = Tone.PLAIN
    swatch: Tone | int | None = None


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Attributes:
        title: Its heading. If no column of a table has a heading, the table has no heading row.
        number: Whether it holds numbers, which are aligned to the right.
        detail: Whether the text renderer leaves the column out to keep lines short.
    """

    title: str = ""
    number: bool = False
    detail: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table with one cell for each row and column. A table without rows is not shown.

    The first cell names the row. It is empty if the row continues the row above.
    """

    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of text. If ``verbatim`` is set, their spaces are kept for alignment."""

    lines: tuple[Cell, ...]
    verbatim: bool = False


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A short text next to a row of a picture, such as a pod's name.

    Attributes:
        text: The text to show, cut to the space that there is.
        more: The full text, shown when a pointer rests on the mark.
        tone: The meaning of the text.
        series: The number of the mark's own colour, which the legend (``Key``) explains; None if the mark has no own
            colour.
    """

    text: str
    more: str
    tone: Tone
    series: int | None = None


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """One way to divide the devices of a link matrix into groups.

    Attributes:
        title: The title for all these groups.
        group: For each device the number of its group; None if it is in no group.
        names: The text that describes each group; its position is the group's number.
    """

    title: str
    group: tuple[int | None, ...]
    names: tuple[str, ...]


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """A square matrix of the links between devices.

    Text shows the devices in the order of their numbers. A picture shows them in an order in which the devices of a
    group are side by side.

    Attributes:
        title: The picture's title.
        devices: The names of rows and columns.
        cells: The cells, one row for each device.
        further: Columns to the right of the cells, such as NUMA nodes. Each is a title and a text for each device.
            Pictures leave them out.
        order: The positions of the devices in the picture's order.
        groupings: The groups, drawn as bars next to the picture's rows; the first grouping is outermost.
        marks: The mark to the left of each device's row in the picture. It may be empty or shorter than ``devices``.
        marked: The heading of the column with the marks.
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
    """A group of bars with a common scale. Each bar has a name, a value and a tone."""

    title: str
    bars: tuple[tuple[str, float, Tone], ...]


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Panels of bars, one below the other, each scaled to its largest bar. The text renderer leaves them out."""

    title: str
    panels: tuple[Panel, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the legend ``Key``: a colour and what it stands for.

    ``series`` is the colour's number (``palette.series``). ``name`` is the thing that has this colour, such as a pod.
    ``where`` says where the thing occurs, such as the pod's GPUs.
    """

    series: int
    name: str
    where: str


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The legend of a document: what each colour in its pictures means.

    ``heads`` are the column headings that are used if the legend is shown as a table.
    """

    title: str
    heads: tuple[str, str]
    entries: tuple[Entry, ...]


Block = Table | Notes | Matrix | Bars | Key


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks with or without a title.

    ``folded``: if it is not empty, a page shows this text instead of the blocks until the reader opens the section.
    """

    title: str = ""
    folded: str = ""
    blocks: tuple[Block, ...]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one command shows. The title is used for a page or a picture."""

    title: str
    sections: tuple[Section, ...]


def words(*texts: str) -> tuple[Cell, ...]:
    """Return table cells with these texts, without a tone (colour)."""
    return tuple(Cell(text) for text in texts)


def table(*columns: str, rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a document's table of plain texts.

    ``columns`` are the headings; if there are none, the table has no heading row. Each of ``rows`` has one text for
    each column. ``title`` is shown above the table.
    """
    count = len(rows[0]) if rows else 0
    heads = tuple(Column(name) for name in columns) or (Column(),) * count
    return Table(title=title, columns=heads, rows=tuple(words(*row) for row in rows))


def report(*blocks: Block, title: str = "") -> Document:
    """Return a document with one section, which has these blocks and no title.

    ``title`` is the title of the whole document.
    """
    return Document(title=title, sections=(Section(blocks=blocks),))
