"""How the cost of a placement grows with nodes and with GPUs a node, as figures and as a picture."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

from dradriver.allocator import Whole, choose, tables_of
from dradriver.topology.machine import Machine
from tests.bench.allocator import scale
from tests.fakes import computed, machines

NODES = (100, 1_000, 10_000, 100_000)
GPUS = (4, 6, 8, 10, 12, 14, 16)
_WIDTH, _HEIGHT, _LEFT, _TOP = 360, 240, 70, 40
_COLOURS = ("#2f6fab", "#c9a227", "#4c9f70")
Series = Mapping[str, Mapping[int, float]]


def measure() -> dict[str, Any]:
    """Median seconds by number of nodes of 8 GPUs, and by GPUs of one machine."""
    two, four = Whole(containers=(2,)), Whole(containers=(4,))
    nodes: dict[str, dict[int, float]] = {"2 GPUs": {}, "4 GPUs": {}}
    for count in NODES:
        fleet = scale.build(count)
        nodes["2 GPUs"][count] = scale.placement_s(fleet, two, count)
        nodes["4 GPUs"][count] = scale.placement_s(fleet, four, count)
    gpus: dict[str, dict[int, float]] = {"tables": {}, "4 GPUs, first time": {}, "4 GPUs, again": {}}
    for count in GPUS:
        machine = machines.bridge_pairs(count)
        gpus["tables"][count] = _tables_s(machine)
        gpus["4 GPUs, first time"][count] = _choice_s(machine, four, first=True)
        gpus["4 GPUs, again"][count] = _choice_s(machine, four, first=False)
    return {"seconds by nodes": nodes, "seconds by GPUs a node": gpus}


def picture(figures: Mapping[str, Series]) -> str:
    """The two charts as one SVG picture; both axes are logarithmic but for GPUs."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * (_WIDTH + _LEFT) + 40}" height="{_HEIGHT + 130}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (title, series) in enumerate(figures.items()):
        parts += _chart(title, series, left=_LEFT + number * (_WIDTH + _LEFT), log=title.endswith("nodes"))
    return "\n".join((*parts, "</svg>", ""))


def _chart(title: str, series: Series, *, left: int, log: bool) -> list[str]:
    values = [value for line in series.values() for value in line.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    at = sorted({x for line in series.values() for x in line})

    def across(x: int) -> float:
        first, last, here = (math.log10(v) if log else float(v) for v in (at[0], at[-1], x))
        return left + _WIDTH * (here - first) / (last - first)

    def up(value: float) -> float:
        return _TOP + _HEIGHT * (high - math.log10(value)) / (high - low)

    parts = [f'<text x="{left}" y="22" font-size="13" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        y = up(10.0**power)
        parts.append(f'<path d="M{left} {y:.1f}h{_WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">1e{power} s</text>')
    parts += [f'<text x="{across(x):.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{x:,}</text>' for x in at]
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number]
        points = " ".join(f"{across(x):.1f},{up(value):.1f}" for x, value in line.items())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = _TOP + _HEIGHT + 36 + 16 * number
        parts.append(f'<rect x="{left}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{left + 16}" y="{y}">{name}</text>')
    return parts


def _tables_s(machine: Machine) -> float:
    took = []
    for _ in range(3):
        computed.forget()
        begun = time.perf_counter()
        tables_of(machine)
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def _choice_s(machine: Machine, request: Whole, *, first: bool) -> float:
    free = range(len(machine.gpus))
    choose(machine, free, request)
    took = []
    for _ in range(50):
        if first:
            computed.forget_choices(machine)
        begun = time.perf_counter()
        choose(machine, free, request)
        took.append(time.perf_counter() - begun)
    return statistics.median(took)
