"""The page's details of one node: the links between its GPUs, their pods, and folded sections on NICs and devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.cli import machine_view
from dradriver.cli.cluster.cluster_view import lost_line, nvlink_set
from dradriver.cluster.views.node_views import GpuView, NodeView
from dradriver.topology.natural import natural
from dradriver.view.document import Cell, Column, Document, Mark, Matrix, Notes, Section, Table, Tone, words

_WORDS: Final[Mapping[str, str]] = {
    "f": "free",
    "b": "only shares or MIG slices of it are allocated, or it is blocked",
    "c": "the node takes no new pods",
    "n": "never placed",
    "r": "reserved for a workload that waits",
}
_TONES: Final[Mapping[str, Tone]] = {"f": Tone.FREE, "p": Tone.PROMISED}


def document(node: NodeView, letters: Mapping[int, str]) -> Document:
    """Return the page's document on one node.

    Args:
        node: The node.
        letters: The letter of each GPU on the page (``page_pieces.node_piece``), by its number.
    """
    machine = node.machine
    free = sum(letter == "f" for letter in letters.values())
    title = f"{node.name}: {machine_view.what(machine)}, {free} free"
    holders = sorted({holder.who for gpu in node.gpus for holder in gpu.taken_by}, key=natural)
    series = {who: number for number, who in enumerate(holders)}
    marks = tuple(_mark(gpu, letters[gpu.gpu.index], series) for gpu in node.gpus)
    picture = machine_view.gpu_matrix(machine, node.groups, title=title, marks=marks)
    notes = [Cell(lost_line(gpu), Tone.ERROR) for gpu in node.lost]
    if free > 1:
        notes.append(Cell(f"Largest free linked set: {nvlink_set(node)}"))
    first = Section(
        blocks=(
            picture,
            machine_view.legend_of(picture, machine),
            _holders(node, letters, series),
            Notes(lines=tuple(notes)),
        )
    )
    facts = Section(folded="Groups and devices", blocks=(_identities(node), *machine_view.facts(machine, node.groups)))
    return Document(title=title, sections=(first, *_nics(node, title), facts))


def _mark(view: GpuView, letter: str, series: Mapping[str, int]) -> Mark:
    taken_by = view.taken_by
    return Mark(
        text="",  # a colour alone: the table below names the pods
        more="; ".join(text for text, _ in _lines(view, letter, series)),
        tone=_TONES.get(letter, Tone.PLAIN if taken_by else Tone.BLOCKED),
        series=series[taken_by[0].who] if taken_by else None,
    )


def _lines(view: GpuView, letter: str, series: Mapping[str, int]) -> Sequence[tuple[str, int | None]]:
    """Return the lines about a GPU, each with the colour number of the user that it is about.

    First comes why no pod gets the GPU, without a colour (None). Then comes a line for each user.

    Args:
        view: The GPU.
        letter: The GPU's letter on the page (``page_pieces.node_piece``).
        series: The colour number of each user.
    """
    alone = view.blocked or ("" if view.taken_by else _WORDS[letter])
    lines: list[tuple[str, int | None]] = [(alone, None)] * bool(alone)
    for holder in view.holders:
        claim = f", claim {holder.claim}" if holder.pods else ""  # a claim without pods is named by itself
        lines.append((holder.words + claim, series.get(holder.who)))
    return lines


def _holders(node: NodeView, letters: Mapping[int, str], series: Mapping[str, int]) -> Table:
    """Return a table of the pods that use a node's GPUs; equal GPUs share a row.

    ``letters`` are the GPUs' letters, ``series`` the users' colour numbers.
    """
    alike: dict[tuple[tuple[str, int | None], ...], list[int]] = {}
    for view in node.gpus:
        alike.setdefault(tuple(_lines(view, letters[view.gpu.index], series)), []).append(view.gpu.index)
    rows = []
    for lines, numbers in alike.items():
        tone = Tone.FREE if letters[numbers[0]] == "f" else Tone.PLAIN
        for position, (text, colour) in enumerate(lines):
            rows.append((Cell("" if position else _ranges(numbers)), Cell(text, tone, swatch=colour)))
    return Table(columns=(Column("GPU"), Column("used by")), rows=tuple(rows))


def _ranges(numbers: Sequence[int]) -> str:
    """Return GPU numbers as text, with runs of three and more as a range: ``0-5, 7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(parts)


def _nics(node: NodeView, title: str) -> list[Section]:
    """Return the matrix with NICs as a folded section; empty for a machine without NICs."""
    nics = node.machine.nics
    if not nics:
        return []
    whole: Matrix = machine_view.matrix(node.machine, node.groups, title=f"{title}, with NICs")
    rows = tuple(words(f"NIC{number}", nic.name) for number, nic in enumerate(nics))
    names = Table(columns=(Column(), Column()), rows=rows)
    legend = machine_view.legend_of(whole, node.machine)
    return [Section(folded=f"NICs ({len(nics)})", blocks=(whole, legend, names))]


def _identities(node: NodeView) -> Table:
    rows = tuple(words(view.gpu.label, view.gpu.uuid, view.gpu.pci) for view in node.gpus)
    return Table(title="GPUs", columns=(Column("GPU"), Column("uuid"), Column("bus id")), rows=rows)
