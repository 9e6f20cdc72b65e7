"""The demo's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dradriver.allocator.request import Choice

_HEAD = ("POD", "NODE", "GPUS", "LEVEL", "BUSBW", "RING ORDER", "DRA ALONE: GPUS", "LEVEL", "BUSBW")

_BETTER_ALONE = (
    "A row can look better under DRA ALONE: the pods above it have other GPUs there, often worse ones for themselves."
)


@dataclass(frozen=True)
class Row:
    """One pod: what it got, what DRA alone would have given it, and the reason where it waits."""

    pod: str
    got: Choice | None
    plain: Choice | None
    reason: str = ""


def render(rows: Sequence[Row]) -> str:
    """Return the rows as a table of text, with a line on rows that look better without the driver."""
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join((*lines, "", _BETTER_ALONE))


def _cells(row: Row) -> tuple[str, ...]:
    if row.got is None:
        mine = ("-", "-", "waits: " + row.reason[:60] if row.reason else "waits", "-", "-")
    else:
        ring = "-".join(str(gpu) for gpu in row.got.ring)
        mine = (row.got.node, _list(row.got), row.got.level.value, _gbps(row.got), ring)
    if row.plain is None:
        return (row.pod, *mine, "-", "-", "-")
    return (row.pod, *mine, f"{row.plain.node} {_list(row.plain)}", row.plain.level.value, _gbps(row.plain))


def _list(choice: Choice) -> str:
    return ",".join(str(gpu) for gpu in choice.gpus)


def _gbps(choice: Choice) -> str:
    return f"{choice.busbw_gbps:.0f} GB/s" if len(choice.gpus) > 1 else "-"
