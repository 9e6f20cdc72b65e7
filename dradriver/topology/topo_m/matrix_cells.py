"""The checked cells of one matrix of ``nvidia-smi topo -m``.

``topo_m_reader`` calls this for lines that ``pasted`` found.

The matrix has a header and a row for each device. A row has one cell for each device column, then cells for the
affinity columns, such as ``CPU Affinity``. Errors name the line and column in the text, both from 1.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from dradriver.topology.cpulist import is_cpu_list
from dradriver.topology.errors import TopologyError
from dradriver.topology.topo_m import pasted
from dradriver.topology.vendors import links_of

GPU = re.compile(r"GPU([0-9]{1,4})")
_DEVICE = re.compile(r"[A-Za-z][\w.:-]{0,63}")
CPU, NUMA, _MEMORY = pasted.HEADINGS
_AFFINITIES = ", ".join(pasted.HEADINGS)
_COLUMN = re.compile(rf"(?:{'|'.join(pasted.HEADINGS)}|\S)+")
_UNKNOWN = "N/A"
_ALLOWED = "X, NV1 to NV99 or links of another vendor, " + ", ".join(pasted.PATHS)
_MOST_DEVICES = 512
_MOST_TOLD = 400  # characters of a message's beginning, and of its end
_LOST = "Write the missing tab or blank between them."


class Cell(msgspec.Struct, frozen=True):
    """A word of a ``topo -m`` matrix, with its line and column in the text, both from 1.

    The column is the position of its first character in the line. Colour codes of a terminal do not count.
    """

    text: str
    line: int
    column: int

    @property
    def place(self) -> tuple[int, int]:
        """Return where the cell's word begins in the text: its line and column, both from 1."""
        return self.line, self.column


class Matrix(msgspec.Struct):
    """The cells of a matrix as text.

    Attributes:
        line: The line of the header.
        devices: The names of the device columns.
        headings: The headings of the columns after the device columns.
        rows: For each device, one cell for each device column.
        affinity: For each device, the texts of the columns after the device columns, by heading.
        counts: For each device, the number of cells after the device columns; -1 if some are missing and it is not
            known which.
        beyond: For each device, the first cell after the last heading's column.
        ends: Line and column of each row's end.
    """

    line: int
    devices: list[str]
    headings: list[str]
    rows: dict[str, list[Cell]] = {}
    affinity: dict[str, dict[str, str]] = {}
    counts: dict[str, int] = {}
    beyond: dict[str, Cell] = {}
    ends: dict[str, tuple[int, int]] = {}

    def texts(self) -> object:
        """Return the texts of all cells of a ``topo -m`` matrix, to compare two matrices."""
        rows = [(name, [cell.text for cell in row]) for name, row in self.rows.items()]
        return self.devices, self.headings, rows, self.affinity


def error(place: tuple[int, int], message: str) -> TopologyError:
    """Return the error ``message`` about a cell of a ``topo -m`` matrix, with its place.

    ``place`` is the cell's line and column in the text.
    """
    if len(message) > 2 * _MOST_TOLD:
        message = f"{message[:_MOST_TOLD]} … {message[-_MOST_TOLD:]}"
    return TopologyError(f"topo -m, line {place[0]}, column {place[1]}: {message}")


def read(found: pasted.PastedMatrix, join: Callable[[pasted.Entry], pasted.Line]) -> Matrix:
    """Return the checked cells of a ``topo -m`` matrix.

    Args:
        found: The lines of the matrix in the text.
        join: Joins the lines of a row or header that was wrapped.

    Raises:
        TopologyError: With line and column, the text there, and what is allowed.
    """
    rows = [_split(join(row)) for row in found.rows]
    matrix = _empty_matrix(join(found.header), [row[0].text for row in rows])
    _check_width(matrix, rows)
    if found.strays:
        raise _stray(matrix, found.strays[0])
    for entry, row in zip(found.rows, rows, strict=True):
        _add_row(matrix, join(entry), row)
    _check_affinities(matrix)
    missing = next((device for device in matrix.devices if device not in matrix.rows), None)
    if missing is not None:
        place = (found.after + 1, 1) if found.rows else found.header.start.place(0)
        raise error(place, f"the row of {missing} is missing. Write the whole output of nvidia-smi topo -m.")
    _check_symmetry(matrix)
    return matrix


def _is_cell(text: str) -> bool:
    return text in pasted.PATHS or links_of(text) is not None


def _check_width(matrix: Matrix, rows: Sequence[Sequence[Cell]]) -> None:
    """Raise if the header seems to have lost some device names.

    The sign is that most rows have the same number of cells, and more cells than the header has devices.
    """
    width = len(matrix.devices)
    counts: Counter[int] = Counter()
    for row in rows:
        count = sum(1 for _ in itertools.takewhile(lambda cell: cell.text == "X" or _is_cell(cell.text), row[1:]))
        after = row[count + 1].text if len(row) > count + 1 else ""
        if after in ("", _UNKNOWN) or is_cpu_list(after):
            counts[count] += 1
    count, agreeing = counts.most_common(1)[0] if counts else (width, 0)
    if agreeing < 2 or agreeing * 2 <= len(rows) or count <= width:
        return
    unknown = next((row[0].text for row in rows if row[0].text not in matrix.devices), None)
    lacks = f". The header has no column for {unknown}." if unknown else ""
    raise error((matrix.line, 1), f"{width} devices in the header, but {count} cells in most rows{lacks}")


def _stray(matrix: Matrix, line: pasted.Line) -> TopologyError:
    cells = _split(line)
    at = next((n for n, cell in enumerate(cells) if cell.text == "X" or _is_cell(cell.text)), 0)
    name = cells[max(0, at - 1)]
    return _no_column(matrix, name)


def _no_column(matrix: Matrix, name: Cell) -> TopologyError:
    return error(name.place, f"{name.text!r} has no column in the header (line {matrix.line})")


def _empty_matrix(line: pasted.Line, rows: Sequence[str]) -> Matrix:
    """Return a matrix that has the columns of a header line and no rows yet.

    Args:
        line: The header line, from the first device on.
        rows: The names at the beginning of rows. They show which words of the header are two names without a blank
            between them.

    Raises:
        TopologyError: With line and column: a word is no column, a column is there twice, or the columns have a wrong
            order.
    """
    # ``line.place`` returns the line and the column in the pasted text, for messages.
    cells = [Cell(match[0], *line.place(match.start())) for match in _COLUMN.finditer(line.text)]
    names = [*pasted.HEADINGS, *filter(_DEVICE.fullmatch, rows)]

    # Two names without a blank between: ``pasted.glued`` returns the words that it can cut a word into.
    glued_words = [
        (word, parts) for word in cells if word.text not in rows and (parts := pasted.glued(word.text, names))
    ]
    if glued_words:
        glued_text = ", ".join(f"{word.text!r} is {' and '.join(parts)}" for word, parts in glued_words)
        raise error(glued_words[0][0].place, f"{glued_text}. {_LOST}")

    # Devices come first, then up to three headings in a fixed order.
    devices: list[str] = []
    headings: list[str] = []
    for cell in cells:
        word = cell.text
        if word in pasted.HEADINGS:
            headings.append(word)
            if word != pasted.HEADINGS[min(len(headings), 3) - 1]:
                raise error(cell.place, f"{word} is in this place. The columns after the devices are {_AFFINITIES}.")
        elif headings or not _DEVICE.fullmatch(word) or "Affinity" in word or word in ("CPU", "NUMA", "GPU", "ID"):
            raise error(cell.place, f"{word!r} is no column. Devices come first, then {_AFFINITIES}.")
        elif word.startswith("GPU") and not GPU.fullmatch(word):
            raise error(cell.place, f"{word!r} is no GPU. Columns of GPUs are GPU0 to GPU9999.")
        elif word in devices:
            raise error(cell.place, f"{word} stands twice in the header")
        else:
            devices.append(word)

    header_line = line.place(0)[0]
    numbers = [int(m[1]) for d in devices if (m := GPU.fullmatch(d))]
    if numbers != sorted(numbers) or len(set(numbers)) != len(numbers):
        raise error((header_line, 1), "the GPU columns are not in ascending order")
    if len(devices) > _MOST_DEVICES:
        raise error((header_line, 1), f"the header has {len(devices)} devices, and at most {_MOST_DEVICES} are read.")
    return Matrix(line=header_line, devices=devices, headings=headings)


def _add_row(matrix: Matrix, line: pasted.Line, cells: Sequence[Cell]) -> None:
    """Check the cells of a row and add them to the matrix.

    Args:
        matrix: The matrix with its header.
        line: The row's line.
        cells: The words of the row. The first word is the device.

    Raises:
        TopologyError: With line and column: the header has no such device, the device has a row already, or a cell is
            missing, unknown, or joined with another one.
    """
    first = cells[0]
    name = first.text
    # A name that is no column may be a device's name and its first cell without a blank between.
    if name not in matrix.devices:
        parts = next(
            ([d, name[len(d) :]] for d in matrix.devices if name.startswith(d) and _begins_with_cell(name[len(d) :])),
            [],
        )
        raise error(first.place, _glued_message(name, parts)) if parts else _no_column(matrix, first)
    if name in matrix.rows:
        raise error(first.place, f"a second row of {name}")
    width = len(matrix.devices)

    # One cell for each device, then the texts below the headings.
    device_cells, affinity_cells = cells[1 : width + 1], cells[width + 1 :]
    for device, cell in zip(matrix.devices, device_cells, strict=False):
        if cell.text == "X" or _is_cell(cell.text):
            continue
        if parts := pasted.glued(cell.text):
            raise error(cell.place, _glued_message(cell.text, parts))
        # A word of the affinity columns is here: a cell before it is missing.
        if cell.text == _UNKNOWN or is_cpu_list(cell.text):
            raise error(
                cell.place, f"{cell.text!r} stands where {name}'s row has its cell for {device}. A cell is missing."
            )
        raise error(cell.place, f"{cell.text!r} is no cell of {name}'s row. Allowed: {_ALLOWED}.")
    if len(device_cells) < width:
        missing = matrix.devices[len(device_cells)]
        raise error(line.place(len(line.text)), f"{name}'s row ends before its cell for {missing}")
    for device, cell in zip(matrix.devices, device_cells, strict=True):
        _check_cell(name, device, cell)

    # ``place`` of the text's length is the end of the row, where a message says that something is missing.
    matrix.rows[name] = list(device_cells)
    matrix.ends[name] = line.place(len(line.text))
    matrix.affinity[name] = _affinity(matrix, name, affinity_cells)


def _begins_with_cell(text: str) -> bool:
    return _is_cell(text) or text == "X" or bool(pasted.glued(text))


def _glued_message(text: str, parts: Sequence[str]) -> str:
    return f"{text!r} is {' and '.join(parts)}. {_LOST}"


def _split(line: pasted.Line) -> list[Cell]:
    """Return the words of a row of a ``topo -m`` matrix as cells.

    Two tabs without text between them make an empty cell.
    """
    if "\t" not in line.text.strip():
        return [Cell(m[0], *line.place(m.start())) for m in re.finditer(r"\S+", line.text)]
    cells: list[Cell] = []
    start = 0
    for piece in line.text.split("\t"):
        words = list(re.finditer(r"\S+", piece))
        if words:
            cells += [Cell(m[0], *line.place(start + m.start())) for m in words]
        elif cells:  # before the first word it is indentation
            cells.append(Cell("", *line.place(start)))
        start += len(piece) + 1
    return cells


def _check_cell(name: str, device: str, cell: Cell) -> None:
    if (cell.text == "X") != (name == device):
        raise error(
            cell.place, f"{cell.text!r} between {name} and {device} is not allowed. X marks only the device itself."
        )
    both_gpus = GPU.fullmatch(name) and GPU.fullmatch(device)
    if links_of(cell.text) is not None and not both_gpus:
        raise error(cell.place, f"{cell.text} between {name} and {device} is not allowed. Links join GPUs only.")


def _affinity(matrix: Matrix, name: str, rest: Sequence[Cell]) -> dict[str, str]:
    """Return the texts after a row's device cells, by heading, without N/A.

    ``name`` is the device of the row. If there are fewer texts than headings, it is not known which ones are missing,
    and the result is empty. ``matrix.counts`` is then set to -1 for this row, unless all texts are N/A.
    """
    headings = matrix.headings
    words = [cell for cell in rest if cell.text]
    for heading, cell in zip(headings, words, strict=False):
        if heading != _MEMORY and cell.text != _UNKNOWN and not is_cpu_list(cell.text):
            raise error(
                cell.place,
                f"{cell.text!r} is no {heading} of {name}, which the header (line {matrix.line}) has here. Write "
                "numbers (0-19,40-59) or N/A.",
            )
    extra = words[len(headings) :]
    if len(headings) == 2 and extra and extra[0].text == _UNKNOWN:  # "GPU NUMA ID", whose heading some leave out
        extra = extra[1:]
    if extra:
        matrix.beyond[name] = extra[0]
    known = [cell.text for cell in words if cell.text != _UNKNOWN]
    is_short = len(words) < len(headings)
    matrix.counts[name] = -1 if is_short and known else len(words)
    return {h: cell.text for h, cell in zip(headings, words, strict=False) if cell.text != _UNKNOWN and not is_short}


def _check_affinities(matrix: Matrix) -> None:
    """Raise unless all GPU rows have the same number of cells after the device cells.

    Each of these cells, such as a GPU's CPU affinity, must have a heading.
    """
    gpus = [device for device in matrix.devices if GPU.fullmatch(device) and device in matrix.rows]
    beyond = [cell for name in matrix.devices if (cell := matrix.beyond.get(name))]
    if beyond and matrix.beyond.keys() == set(gpus):
        raise error((matrix.line, 1), f"the header has no heading for {beyond[0].text!r} in line {beyond[0].line}")
    if beyond:
        raise error(beyond[0].place, f"{beyond[0].text!r} stands behind the last column (line {matrix.line})")
    most = max((matrix.counts[gpu] for gpu in gpus), default=0)
    for gpu in gpus:
        if matrix.counts[gpu] < max(most, 0):
            raise error(
                matrix.ends[gpu],
                f"{gpu}'s row has too few cells for {', '.join(matrix.headings)}. Write N/A for unknown values.",
            )


def _check_symmetry(matrix: Matrix) -> None:
    position = {device: i for i, device in enumerate(matrix.devices)}
    for a in matrix.devices:
        for b in matrix.devices[: position[a]]:
            here, there = matrix.rows[a][position[b]], matrix.rows[b][position[a]]
            if here.text != there.text:
                raise error(
                    here.place, f"{a} to {b} is {here.text}, but {b} to {a} (line {there.line}) is {there.text}"
                )
