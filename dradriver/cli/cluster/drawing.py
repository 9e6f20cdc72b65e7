"""The view as a picture: beside each GPU's row who holds it, in one colour a holder over all nodes."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence

from dradriver.cli import picture
from dradriver.cli.cluster import text
from dradriver.cli.cluster.model import GpuView, NodeView
from dradriver.cli.picture import HEIGHT, TOP, Drawing, escaped
from dradriver.cli.text import what
from dradriver.topology.topo_m import writer

_CHARACTER = 7.3  # pixels of one in the pictures' font
_MOST = 64  # characters beside a row; a tooltip has them all
_LINE = 22
_STYLE = """\
.who { text-anchor: start } .nobody { fill: #6b6b6b }
.free { fill: none; stroke: #d9d9d9 } .blocked { fill: #d9d9d9 } .promised { stroke: #1a1a1a; stroke-dasharray: 4 3 }
"""
_HTML = """\
<!DOCTYPE html>
<html lang="en" xmlns="http://www.w3.org/1999/xhtml">
<head><meta charset="utf-8"/><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em; background: #fff; color: #1a1a1a }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ padding: .2em 1.2em .2em 0; text-align: left; vertical-align: top; overflow-wrap: anywhere }}
.picture {{ overflow-x: auto }} pre {{ color: #444 }} summary {{ cursor: pointer }}
h2 {{ margin-top: 2em; border-top: 1px solid #ccc; padding-top: .6em }}
.swatch {{ display: inline-block; width: 1em; height: 1em; vertical-align: middle }}
{style}</style></head>
<body>
<h1>{title}</h1>
{body}<details><summary>Legend of the matrix</summary><pre>{legend}</pre></details>
</body>
</html>
"""

Colours = Mapping[str, str]
"""The colour of each holder, by what it is called."""


def svg(nodes: Sequence[NodeView]) -> str:
    """Return one SVG document: node below node, then the holders' legend; text is escaped."""
    colours, column = _colours(nodes), _column(nodes)
    lines = [f"<style>\n{_STYLE}</style>"]
    width, y = 0, 0
    for node in nodes:
        drawn = _node(node, colours, column=column)
        lines += [f'<g transform="translate(0 {y})">', *drawn.lines, "</g>"]
        width, y = max(width, drawn.width), y + drawn.height + 16
    if colours:
        lines.append(f'<text class="title" x="8" y="{y + 12}">Holders</text>')
        y += _LINE
    for who, where in _holdings(nodes).items():
        words = f"{who}: {'; '.join(where)}"
        lines.append(f'<rect x="8" y="{y + 3}" width="16" height="16" fill="{colours[who]}"/>')
        lines.append(f'<text class="who" x="32" y="{y + 11}">{escaped(words)}</text>')
        width, y = max(width, 44 + round(len(words) * _CHARACTER)), y + _LINE
    return picture.document(Drawing(lines, width, y + 10), title=_title(nodes))


def html(nodes: Sequence[NodeView]) -> str:
    """Return one HTML page, which is XML too: a summary, the holders, and every node's picture with its GPUs."""
    colours, column = _colours(nodes), _column(nodes)
    body = picture.html_table(text.SUMMARY, [text.summary(node) for node in nodes])
    body += _legend(nodes, colours) if colours else ""
    for node in nodes:
        drawn = _node(node, colours, column=column)
        body += f"<h2>{escaped(node.name)}</h2>\n"
        body += f'<div class="picture">\n{picture.document(drawn, title=_heading(node))}</div>\n'
        body += picture.html_table(("GPU", "uuid", "bus id", "held by", "claim"), _rows(node))
        more = picture.tables(node.machine, node.groups)
        body += f"<details><summary>Groups and devices</summary>\n{more}</details>\n"
    legend = writer.legend(nodes[0].machine).split("\nNIC Legend:")[0]
    return _HTML.format(title=escaped(_title(nodes)), style=_STYLE, body=body, legend=escaped(legend))


def _legend(nodes: Sequence[NodeView], colours: Colours) -> str:
    rows = [
        f'<tr><td><span class="swatch" style="background: {colours[who]}"></span> {escaped(who)}</td>'
        f"<td>{escaped('; '.join(where))}</td></tr>"
        for who, where in _holdings(nodes).items()
    ]
    return "\n".join(["<table>", "<tr><th>holder</th><th>GPUs</th></tr>", *rows, "</table>"]) + "\n"


def _title(nodes: Sequence[NodeView]) -> str:
    gpus, free = sum(len(node.gpus) for node in nodes), sum(len(node.free) for node in nodes)
    return f"{len(nodes)} node{'s' * (len(nodes) > 1)}, {gpus} GPUs, {free} free"


def _heading(node: NodeView) -> str:
    return f"{node.name}: {what(node.machine)}, {len(node.free)} free"


def _rows(node: NodeView) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for view in node.gpus:
        for n, (words, claim) in enumerate(text.lines(view)):
            gpu = ("", "", "") if n else (f"GPU{view.gpu.index}", view.gpu.uuid, view.gpu.pci)
            rows.append((*gpu, words, claim.removeprefix("claim ")))
    return rows


def _column(nodes: Sequence[NodeView]) -> int:
    """Return the width that the holders of all nodes need, so that the matrices stand below each other."""
    labels = [_label(view) for node in nodes for view in node.gpus]
    return 24 + round(max(map(len, ["held by", *labels])) * _CHARACTER)


def _node(node: NodeView, colours: Colours, *, column: int) -> Drawing:
    """Return a node's matrix with a column of holders on the left."""
    drawn = picture.matrix(node.machine, node.groups)
    lines = [
        picture.heading(_heading(node)),
        f'<text class="who size" x="14" y="{TOP + HEIGHT // 2}">held by</text>',
    ]
    for row, position in enumerate(node.groups.order):
        y = TOP + (row + 1) * HEIGHT
        lines += _held(node.gpus[position], colours, y=y, width=column - 8)
    width = max(column + drawn.width, 16 + round(len(_heading(node)) * _CHARACTER))
    lines += [f'<g transform="translate({column} 0)">', *drawn.lines, "</g>"]
    return Drawing(lines, width, drawn.height)


def _label(view: GpuView) -> str:
    words = "; ".join(words for words, _ in text.lines(view))
    return words if len(words) <= _MOST else words[: _MOST - 1] + "…"


def _held(view: GpuView, colours: Colours, *, y: int, width: int) -> list[str]:
    full = "; ".join(" ".join(part for part in line if part) for line in text.lines(view))
    fill = f' fill="{colours[view.taken_by[0].who]}"' if view.taken_by else ""
    nobody = " nobody" if view.state == "free" else ""
    return [
        f'<rect class="{view.state}" x="8" y="{y + 1}" width="{width}" height="{HEIGHT - 2}"{fill}>'
        f"<title>{escaped(full)}</title></rect>",
        f'<text class="who{nobody}" x="14" y="{y + HEIGHT // 2}">{escaped(_label(view))}</text>',
    ]


def _holdings(nodes: Sequence[NodeView]) -> dict[str, list[str]]:
    """Return what every holder has, for the legend; whoever only monitors is not there, for it has nothing."""
    found: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        for view in node.gpus:
            for who in dict.fromkeys(holder.who for holder in view.taken_by):
                found.setdefault(who, {}).setdefault(node.name, []).append(f"GPU{view.gpu.index}")
    return {who: [f"{name} {' '.join(gpus)}" for name, gpus in where.items()] for who, where in sorted(found.items())}


def _colours(nodes: Sequence[NodeView]) -> Colours:
    """Return light colours far apart: each hue is a golden section of the circle from the one before."""
    return {
        who: "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(0.08 + n * 0.618 % 1, 0.78, 0.7))
        for n, who in enumerate(_holdings(nodes))
    }
