"""Bars as an SVG picture, written by hand so that no plotting library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dradriver.cli.simulator.replay import Result

_PANELS = (
    ("best_share", "jobs on the best set", "%"),
    ("bandwidth", "bandwidth against best", "%"),
    ("mean_wait_s", "mean waiting time", "min"),
    ("utilisation", "utilisation", "%"),
    ("fragmentation", "fragmentation", "%"),
)
_COLOURS = ("#9aa5b1", "#7b8794", "#c9a227", "#4c9f70", "#2f6fab", "#1b3f6b")
_LEFT, _WIDTH, _BAR, _GAP, _TITLE = 130, 420, 16, 6, 26


def bars(results: Sequence[Result], *, title: str) -> str:
    """One panel a figure, one bar a policy; each panel is scaled to its largest."""
    panel = _TITLE + len(results) * (_BAR + _GAP) + 14
    height = 40 + panel * len(_PANELS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{height}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="22" font-size="14">{escape(title)}</text>',
    ]
    for number, (field, name, unit) in enumerate(_PANELS):
        top = 40 + number * panel
        values = [getattr(result, field) * (100 if unit == "%" else 1 / 60) for result in results]
        most = max([*values, 1e-9])
        parts.append(f'<text x="10" y="{top + 14}" font-weight="bold">{name} ({unit})</text>')
        for at, (result, value) in enumerate(zip(results, values, strict=True)):
            y = top + _TITLE + at * (_BAR + _GAP)
            parts.append(
                f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(result.policy)}</text>'
                f'<rect x="{_LEFT}" y="{y}" width="{max(1.0, _WIDTH * value / most):.1f}" height="{_BAR}" '
                f'fill="{_COLOURS[at % len(_COLOURS)]}"/>'
                f'<text x="{_LEFT + _WIDTH * value / most + 6:.1f}" y="{y + 12}">{value:.1f}</text>'
            )
    return "\n".join((*parts, "</svg>", ""))
