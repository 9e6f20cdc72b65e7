"""The view of one machine: the matrix of ``nvidia-smi topo -m``, and groups, levels and devices for placement.

A *group* is a set of GPUs with good links between them, which the driver publishes for placement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import Final

import msgspec

from dradriver.allocator.choice import phrases
from dradriver.topology import gpu_distances, machine_codec
from dradriver.topology.groups import SIZES, Groups
from dradriver.topology.link_rates import line_rate_gbps
from dradriver.topology.machine import Machine
from dradriver.topology.topo_m import topo_m_writer
from dradriver.topology.vendors import NVIDIA
from dradriver.view.document import (
    Block,
    Cell,
    Column,
    Document,
    Grouping,
    Mark,
    Matrix,
    Notes,
    Table,
    Tone,
    report,
    table,
    words,
)

_TONES: Final = {tone.value: tone for tone in (Tone.SELF, Tone.PIX, Tone.PXB, Tone.PHB, Tone.NODE, Tone.SYS)}

_LINKED: Final = "LINKED"  # direct links that are no NVLinks, as the word of policies has it


def what(machine: Machine) -> str:
    """Return the number of GPUs of a machine and their product, in words."""
    return f"{len(machine.gpus)} x {machine.product}"


def document(machine: Machine, groups: Groups) -> Document:
    """Return the output of ``gputopo topo`` for one machine. ``topo_m.read`` can read its text."""
    title = f"{machine.name or 'unnamed'}: {what(machine)}"
    return report(matrix(machine, groups, title=title), legend(machine), *facts(machine, groups), title=title)


def data(machine: Machine, groups: Groups) -> dict[str, object]:
    """Return the data of ``gputopo topo -o json``: the machine as its codec writes it, groups and device order.

    In a group, ``bandwidth_gbps`` is the line rate of the weakest link in its ring, and ``gbps`` the bandwidth that
    NCCL counts for this link. Both are left out if the vendor does not publish what a link carries.
    """
    made: dict[str, object] = json.loads(machine_codec.encode(machine))
    made["domains"] = [_indices(machine, members) for members in _members(groups.domain)]
    made["groups"] = [
        {"size": size, "gpus": _indices(machine, members)}
        | ({"bandwidth_gbps": line, "gbps": nccl} if machine.vendor.rated else {})
        for size in SIZES
        for members, line, nccl in _rated(groups, size)
    ]
    made["order"] = _indices(machine, groups.order)
    return made


def matrix(machine: Machine, groups: Groups, *, title: str, marks: tuple[Mark, ...] = (), marked: str = "") -> Matrix:
    """Return the matrix of ``nvidia-smi topo -m`` for a machine.

    ``groups`` are the machine's groups of well-linked GPUs. ``marks`` are shown next to GPUs, by GPU position, under
    the title ``marked``.
    """
    head, *rows = topo_m_writer.cells(machine)
    count = len(rows)
    gpus = len(machine.gpus)
    return Matrix(
        title=title,
        devices=tuple(head[1 : 1 + count]),
        cells=tuple(tuple(Cell(cell, _tone(cell)) for cell in row[1 : 1 + count]) for row in rows),
        further=tuple((head[n], tuple(row[n] for row in rows)) for n in range(1 + count, len(head))),
        order=(*groups.order, *range(gpus, count)),
        groupings=tuple(_grouping(machine, groups, size) for size in reversed(SIZES)),
        marks=marks,
        marked=marked,
    )


def gpu_matrix(machine: Machine, groups: Groups, *, title: str, marks: tuple[Mark, ...]) -> Matrix:
    """Return the matrix of links between a machine's GPUs alone, for narrow space.

    The headings are GPU numbers. ``marks`` are shown next to GPUs, by GPU position.
    """
    whole = matrix(machine, groups, title=title, marks=marks, marked="GPU")
    gpus = len(machine.gpus)
    numbers = tuple(str(gpu.index) for gpu in machine.gpus)
    cells = tuple(row[:gpus] for row in whole.cells[:gpus])
    return msgspec.structs.replace(whole, devices=numbers, cells=cells, further=(), order=whole.order[:gpus])


def legend_of(shown: Matrix, machine: Machine) -> Table:
    """Return the legend of the colours in a machine's matrix (``shown``), the best link first."""
    meanings = dict(re.findall(r"(?m)^  (\S+) += (.+)$", topo_m_writer.cell_legend(machine)))
    word_of = {cell.tone: cell.text.strip() for row in shown.cells for cell in row}
    rows = []
    for tone in Tone:
        if tone is not Tone.SELF and (word := word_of.get(tone)):
            word = word if word in meanings else f"{machine.vendor.cell}#"
            rows.append((Cell(word, swatch=tone), Cell(meanings.get(word, ""))))
    return Table(columns=(Column(), Column()), rows=tuple(rows))


def _tone(cell: str) -> Tone:
    word = cell.strip()
    return _TONES.get(word, Tone.NV)


def _grouping(machine: Machine, groups: Groups, size: int) -> Grouping:
    said = (
        f"group of {size}: {_names(machine, who)}" + (f", {line} GB/s" if machine.vendor.rated else "")
        for who, line, _ in _rated(groups, size)
    )
    return Grouping(title=str(size), group=groups.by_size[size], names=tuple(said))


def legend(machine: Machine) -> Notes:
    """Return the text legend of a machine's ``nvidia-smi topo -m`` matrix."""
    return Notes(lines=words(*topo_m_writer.cell_legend(machine).splitlines()), verbatim=True)


def _rates(machine: Machine) -> tuple[str, ...]:
    """Return the headings of the two bandwidth columns: line rate, and the rate that the collective library counts.

    The result is empty if the vendor does not publish what a link carries.
    """
    return ("line rate", f"{machine.vendor.library} counts") if machine.vendor.rated else ()


def _rate_cells(machine: Machine, lines: Collection[float], counted: Collection[float]) -> tuple[str, ...]:
    return (_span(lines), _span(counted)) if machine.vendor.rated else ()


def facts(machine: Machine, groups: Groups) -> list[Block]:
    """Return the view of a machine without matrix and legend: groups, NUMA nodes and devices."""
    nics = topo_m_writer.nic_legend(machine).splitlines()
    slices = [
        f"  GPU{gpu.index} is in MIG mode:  {', '.join(device.profile or device.uuid for device in gpu.mig) or 'empty'}"
        for gpu in machine.gpus
        if gpu.mig is not None
    ]
    nccl = f", NCCL {machine.nccl_version}" if machine.nccl_version and machine.vendor.predicted else ""
    return [
        Notes(lines=words(*nics), verbatim=True),
        Notes(lines=words(f"Machine: {machine.name or 'unnamed'}, {what(machine)}{nccl}", *slices, *_blocks(machine))),
        _groups(machine, groups),
        Notes(lines=words(f"Device order: {_names(machine, groups.order)}")),
        _levels(machine),
        _numa(machine),
        _devices(machine),
    ]


def _blocks(machine: Machine) -> list[str]:
    """Return lines about the blocks of a machine: GPUs that one pod may use together.

    The result is empty if a pod may use any GPUs together.
    """
    if machine.blocks is None:
        return []
    blocks = "; ".join(_names(machine, members) for members in _members(machine.blocks.of) if members)
    rules = filter(None, (phrases.together(machine), phrases.counts(machine)))
    return [f"Blocks: {blocks}", *(f"  {rule}" for rule in rules)]


def _groups(machine: Machine, groups: Groups) -> Table:
    rows: list[tuple[str, ...]] = []
    for size in SIZES:
        shown = [
            (str(size), str(n), _names(machine, who), *_rate_cells(machine, {line}, {nccl}))
            for n, (who, line, nccl) in enumerate(_rated(groups, size))
        ]
        rows += shown or [(str(size), "", "none", *_rate_cells(machine, (), ()))]
    title = "Groups with the best links (weakest step of the group's best ring, one direction)"
    return table("size", "group", "members", *_rates(machine), rows=rows, title=title)


def _rated(groups: Groups, size: int) -> Iterable[tuple[list[int], int, float]]:
    """Return for every group with ``size`` GPUs: GPU positions, line rate, and the bandwidth that NCCL counts.

    Both rates, in GB/s, are those of the worst link in the group's ring.
    """
    return zip(_members(groups.by_size[size]), groups.line_gbps[size], groups.gbps[size], strict=True)


def _levels(machine: Machine) -> Table:
    """Return a table with the number of GPU pairs at each distance, nearest first.

    Only direct links have a line rate.
    """
    pairs: dict[gpu_distances.Step, list[tuple[int, int]]] = {}
    for i, j in combinations(range(len(machine.gpus)), 2):
        pairs.setdefault(gpu_distances.step(machine, i, j), []).append((i, j))
    rows = []
    for step, found in sorted(pairs.items()):
        lines = {line_rate_gbps(links, machine.link_gbps) for i, j in found if (links := machine.links[i][j])}
        nccl = {gpu_distances.step_gbps(machine, i, j) for i, j in found}
        name = step.name if machine.vendor is NVIDIA or step is not gpu_distances.Step.NVLINK else _LINKED
        level = f"L{gpu_distances.topology_level(step)} {name}"
        rows.append(words(level, str(len(found)), *_rate_cells(machine, lines, nccl)))
    columns = (Column("level"), Column("pairs", number=True), *map(Column, _rates(machine)))
    return Table(title="Levels (pairs of GPUs, one direction)", columns=columns, rows=tuple(rows))


def _span(gbps: Collection[float]) -> str:
    if not any(gbps):  # nobody publishes what some links carry
        return ""
    low, high = min(gbps), max(gbps)
    return f"{low:g} GB/s" if low == high else f"{low:g} to {high:g} GB/s"


def _numa(machine: Machine) -> Table:
    cpus = {node.id: node.cpus for node in machine.numa}
    known = {gpu.numa for gpu in machine.gpus if gpu.numa is not None} | set(cpus)
    rows: list[tuple[str, ...]] = []
    for node in [*sorted(known), None]:
        gpus = [f"GPU{gpu.index}" for gpu in machine.gpus if gpu.numa == node]
        nics = [nic.name for nic in machine.nics if nic.numa == node]
        if node is not None:
            rows.append((str(node), " ".join([*gpus, *nics]), cpus.get(node) or "N/A"))
        elif gpus or nics:
            rows.append(("not known", " ".join([*gpus, *nics]), ""))
    return table("node", "devices", "CPUs", rows=rows, title="NUMA nodes")


def _devices(machine: Machine) -> Table:
    numa = [*(gpu.numa for gpu in machine.gpus), *(nic.numa for nic in machine.nics)]
    devices = [(gpu.label, gpu.product, gpu.pci) for gpu in machine.gpus]
    devices += [(f"NIC{n}", nic.name, nic.pci) for n, nic in enumerate(machine.nics)]
    every = zip(devices, numa, strict=True)
    rows = tuple(words(*device, "not known" if node is None else str(node)) for device, node in every)
    columns = tuple(Column(head, detail=True) for head in ("device", "name", "bus id", "NUMA node"))
    return Table(title="Devices", columns=columns, rows=rows)


def _indices(machine: Machine, positions: Iterable[int]) -> list[int]:
    return [machine.gpus[i].index for i in positions]


def _members(numbers: Sequence[int | None]) -> list[list[int]]:
    """Return the GPU positions of every group, by group number.

    ``numbers`` has the group number of each GPU; None for a GPU without a group.
    """
    count = max((n for n in numbers if n is not None), default=-1) + 1
    return [[i for i, n in enumerate(numbers) if n == number] for number in range(count)]


def _names(machine: Machine, positions: Iterable[int]) -> str:
    return " ".join(f"GPU{index}" for index in _indices(machine, positions))
