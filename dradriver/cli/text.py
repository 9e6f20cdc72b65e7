"""A machine as text, as readers of ``nvidia-smi topo -m`` know it, and as a document."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import combinations

import click

from dradriver.topology import codec, levels
from dradriver.topology.groups import SIZES, Groups
from dradriver.topology.machine import Machine
from dradriver.topology.topo_m import writer

_COLOURS = {"PIX": "cyan", "PXB": "cyan", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}


def what(machine: Machine) -> str:
    """Return how many GPUs of what product it has."""
    return f"{len(machine.gpus)} x {machine.product}"


def document(machine: Machine, groups: Groups) -> dict[str, object]:
    """Return the codec's document with ``domains``, ``groups`` and ``order`` added, by the machine's GPU numbers."""
    made: dict[str, object] = json.loads(codec.encode(machine))
    made["domains"] = [_indices(machine, members) for members in _members(groups.domain)]
    made["groups"] = [
        {"size": size, "gpus": _indices(machine, members), "gbps": gbps}
        for size in SIZES
        for members, gbps in zip(_members(groups.by_size[size]), groups.gbps[size], strict=True)
    ]
    made["order"] = _indices(machine, groups.order)
    return made


def _indices(machine: Machine, positions: Iterable[int]) -> list[int]:
    return [machine.gpus[i].index for i in positions]


def _members(numbers: tuple[int | None, ...]) -> list[list[int]]:
    """Return the positions of every group, by group number."""
    count = max((n for n in numbers if n is not None), default=-1) + 1
    return [[i for i, n in enumerate(numbers) if n == number] for number in range(count)]


def table(machine: Machine, groups: Groups, *, colour: bool) -> str:
    """Return the whole text: matrix, legends, groups, NUMA nodes. ``topo_m.read`` reads it back."""
    lines = [*_matrix(machine, colour=colour), "", *writer.legend(machine).splitlines(), ""]
    lines += [f"Machine: {machine.name or 'unnamed'}, {what(machine)}", *_mig_lines(machine), ""]
    lines += [*_group_lines(machine, groups), "", *_step_lines(machine), "", *_numa_lines(machine)]
    return "\n".join(lines)


def _mig_lines(machine: Machine) -> list[str]:
    return [
        f"  GPU{gpu.index} is in MIG mode:  {', '.join(device.profile or device.uuid for device in gpu.mig) or 'empty'}"
        for gpu in machine.gpus
        if gpu.mig is not None
    ]


def _matrix(machine: Machine, *, colour: bool) -> list[str]:
    rows = writer.cells(machine)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for i, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if colour:
            paint = _heading if i == 0 else _paint
            cells = [paint(cell) for cell in cells]
        lines.append("  ".join(cells).rstrip())
    return lines


def _heading(cell: str) -> str:
    text = cell.rstrip()
    return click.style(text, underline=True) + cell[len(text) :]


def _paint(cell: str) -> str:
    word = cell.strip()
    if word.startswith("NV"):
        return click.style(cell, fg="green", bold=True)
    return click.style(cell, fg=_COLOURS[word]) if word in _COLOURS else cell


def _group_lines(machine: Machine, groups: Groups) -> list[str]:
    lines = ["Groups with the best links (weakest step of the group's best ring, one direction):"]
    for size in SIZES:
        found = zip(_members(groups.by_size[size]), groups.gbps[size], strict=True)
        shown = [f"{_names(machine, members)} ({gbps:g} GB/s)" for members, gbps in found]
        lines.append(f"  of {size}:  {',  '.join(shown) or 'none'}")
    lines.append(f"  order: {_names(machine, groups.order)}")
    return lines


def _step_lines(machine: Machine) -> list[str]:
    """Return how many pairs of GPUs are how far apart, nearest first."""
    pairs: dict[levels.Step, list[float]] = {}
    for i, j in combinations(range(len(machine.gpus)), 2):
        pairs.setdefault(levels.step(machine, i, j), []).append(levels.step_gbps(machine, i, j))
    lines = ["Levels (pairs of GPUs, one direction):"]
    for step in sorted(pairs):
        low, high = min(pairs[step]), max(pairs[step])
        gbps = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        lines.append(f"  L{levels.topology_level(step)} {step.name}:  {len(pairs[step])} pairs, {gbps} GB/s")
    return lines if pairs else []


def _names(machine: Machine, positions: Iterable[int]) -> str:
    return " ".join(f"GPU{index}" for index in _indices(machine, positions))


def _numa_lines(machine: Machine) -> list[str]:
    cpus = {node.id: node.cpus for node in machine.numa}
    known = {gpu.numa for gpu in machine.gpus if gpu.numa is not None} | set(cpus)
    lines = ["NUMA nodes:"]
    for node in [*sorted(known), None]:
        gpus = [f"GPU{gpu.index}" for gpu in machine.gpus if gpu.numa == node]
        nics = [nic.name for nic in machine.nics if nic.numa == node]
        if node is not None:
            lines.append(f"  {node}:  {' '.join([*gpus, *nics])}  CPUs {cpus.get(node) or 'N/A'}")
        elif gpus or nics:
            lines.append(f"  not known:  {' '.join([*gpus, *nics])}")
    return lines
