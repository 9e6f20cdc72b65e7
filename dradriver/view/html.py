"""Renders a document as one HTML page that is also valid XML.

It contains its pictures and loads nothing from elsewhere.

A document has titled sections with blocks, such as tables and pictures (``document``).
"""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.view import svg
from dradriver.view.document import Bars, Block, Cell, Column, Document, Key, Matrix, Notes, Section, Table, Tone
from dradriver.view.palette import css
from dradriver.view.svg_elements import FONT, escaped
from dradriver.view.terminal_text import width

_LONG = 48  # characters that a cell has in one line
_INDEXED = 3  # titled sections, from which on a page has an index
_PAGE = """\
<!DOCTYPE html>
<html lang="en" xmlns="http://www.w3.org/1999/xhtml">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1.5em auto; padding: 0 1.5em; max-width: 110em }}
h1, h2, p, .long {{ overflow-wrap: anywhere }} h1 {{ font-size: 1.5em }} h2 {{ font-size: 1.2em }}
h2 {{ margin: 2em 0 .5em; border-top: 1px solid; padding-top: .8em }}
.wide {{ overflow-x: auto; margin: 1em 0 }} .wide > svg {{ display: block }}
table {{ border-collapse: collapse }}
caption {{ text-align: left; font-weight: bold; padding: .2em 0 }}
th, td {{ padding: .2em .8em; text-align: left; vertical-align: top; border-bottom: 1px solid; white-space: nowrap }}
.long {{ white-space: normal; min-width: 24em }}
th {{ font-weight: 600 }} .number {{ text-align: right; font-variant-numeric: tabular-nums }}
pre {{ font: 13px/1.4 ui-monospace, monospace; overflow-x: auto }}
.index {{ list-style: none; margin: 1em 0; padding: 0; columns: 16em auto; overflow-wrap: anywhere }}
a {{ color: inherit }} summary {{ cursor: pointer }} td svg, th svg {{ vertical-align: -2px; margin-right: .4em }}
{style}</style>
</head>
<body>
<h1>{title}</h1>
<main>
{body}</main>
</body>
</html>
"""


def render(document: Document) -> str:
    """Return the HTML page of a document; all text is escaped."""
    style = FONT + css(svg.colours(document))
    side = svg.sides(document)
    body = "".join(_section(section, side=side, name=name) for name, section in enumerate(document.sections))
    return _PAGE.format(title=escaped(document.title), style=style, body=_index(document) + body)


def fragment(document: Document) -> str:
    """Return a document's sections as HTML, to insert into a page that already has the CSS rules.

    All text is escaped.
    """
    side = svg.sides(document)
    return "".join(_section(section, side=side) for section in document.sections)


def _index(document: Document) -> str:
    """Return HTML with links to a document's titled sections; empty for fewer than three."""
    titled = [(name, section.title) for name, section in enumerate(document.sections) if section.title]
    if len(titled) < _INDEXED:
        return ""
    links = "".join(f'<li><a href="#s{name}">{escaped(title)}</a></li>' for name, title in titled)
    return f'<nav aria-label="Contents"><ul class="index">{links}</ul></nav>\n'


def _section(section: Section, *, side: int, name: int | None = None) -> str:
    body = "".join(_block(block, side=side) for block in section.blocks)
    if section.folded:
        body = f"<details>\n<summary>{escaped(section.folded)}</summary>\n{body}</details>\n"
    place = "" if name is None else f' id="s{name}"'
    return f"<h2{place}>{escaped(section.title)}</h2>\n{body}" if section.title else body


def _block(block: Block, *, side: int) -> str:
    match block:
        case Table():
            return _table(block)
        case Key():
            return _key(block)
        case Notes():
            return _notes(block)
        case Matrix() | Bars():
            return f'<div class="wide">\n{svg.inline(block, side=side)}</div>\n'


def _table(table: Table) -> str:
    rows = [[_name(row[0], table.columns[0]), *map(_cell, row[1:], table.columns[1:])] for row in table.rows]
    return _rows(table.title, table.columns, rows)


def _key(key: Key) -> str:
    columns = [Column(head) for head in key.heads]
    rows = [
        [_name(Cell(entry.name, swatch=entry.series), columns[0]), _cell(Cell(entry.where), columns[1])]
        for entry in key.entries
    ]
    return _rows(key.title, columns, rows)


def _rows(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = ['<div class="wide">\n<table>']
    if title:
        lines.append(f"<caption>{escaped(title)}</caption>")
    if any(column.title for column in columns):
        heads = (f'<th scope="col"{_class(Cell(""), column)}>{escaped(column.title)}</th>' for column in columns)
        lines.append(f"<thead><tr>{''.join(heads)}</tr></thead>")
    lines += ["<tbody>", *(f"<tr>{''.join(row)}</tr>" for row in rows), "</tbody>", "</table>\n</div>"]
    return "\n".join(lines) + "\n"


def _name(cell: Cell, column: Column) -> str:
    """Return a row's first cell as HTML: a heading cell with the row's name.

    If the row continues the row above and so has no name, return an empty plain cell. ``column`` sets the alignment.
    """
    return f'<th scope="row"{_class(cell, column)}>{_content(cell)}</th>' if cell.text else "<td></td>"


def _cell(cell: Cell, column: Column) -> str:
    return f"<td{_class(cell, column)}>{_content(cell)}</td>"


def _content(cell: Cell) -> str:
    return ("" if cell.swatch is None else svg.swatch(cell.swatch)) + escaped(cell.text)


def _class(cell: Cell, column: Column) -> str:
    kinds = [] if cell.tone is Tone.PLAIN else [cell.tone.value]
    kinds += ["number"] * column.number + ["long"] * (width(cell.text) > _LONG)
    return f' class="{" ".join(kinds)}"' if kinds else ""


def _notes(notes: Notes) -> str:
    if notes.verbatim and notes.lines:
        return f"<pre>{chr(10).join(escaped(line.text) for line in notes.lines)}</pre>\n"
    return "".join(f"<p>{escaped(line.text)}</p>\n" for line in notes.lines)
