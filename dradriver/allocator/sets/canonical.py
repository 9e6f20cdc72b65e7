"""Finds one numbering for all machines that are alike, so that they share costly figures. ``tables`` calls it.

The algorithm is colour refinement. GPUs are the vertices of a graph; the links and the PCIe path of two GPUs are an
edge. Vertices of one colour are divided by the colours and edges that they see, until nothing changes. If several
vertices still have one colour, each of them in turn is given a colour of its own, and the refinement continues. The
vertex with the smallest result is used, among equal results the lowest. In every known machine, equal results come from
a symmetry. For a graph that is made to defeat the algorithm, equal machines may not share figures; the figures stay
right.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from operator import add

from dradriver.allocator.sets.shape import Shape

_Colours = tuple[int, ...]
_Edges = Sequence[Sequence[int]]


@lru_cache(maxsize=1024)
def canonical(shape: Shape) -> tuple[Shape, tuple[int, ...]]:
    """Return a machine's shape in the canonical numbering, and where each GPU comes from.

    A shape is a machine without names. Shapes that differ only in their numbering have the same canonical shape. Entry
    ``i`` of the tuple is the position in ``shape`` of the GPU at canonical position ``i``.
    """
    order = _order(shape)
    return shape.renumbered(order), order


def _order(shape: Shape) -> tuple[int, ...]:
    """Return the order in which a machine's GPUs get their canonical numbers.

    The result has the GPUs' positions in ``shape``. Machines that differ only in their numbering become equal in this
    order.
    """
    # An edge's number stands for all that joins two GPUs. A vertex's colour stands for all properties of one GPU. Equal
    # ones have equal numbers.
    vertices = range(shape.size)
    edges = _ranked(
        [[(shape.links[a][b], shape.links[b][a], shape.paths[a][b], *_together(shape, a, b)) for b in vertices]
         for a in vertices]
    )  # fmt: skip
    features = [
        (shape.switch_links[a], shape.nics[a], shape.direct[a], shape.pcie_gbps[a], shape.memory_mib[a],
         shape.power_watts[a], shape.numa[a] is None, shape.roots[a] is None)
        for a in vertices
    ]  # fmt: skip
    kinds = sorted(set(features))
    colours = _refined(tuple(kinds.index(feature) for feature in features), edges)[0]

    # Cells are vertices of one colour. Set one vertex of a cell apart and refine, until all colours differ. Twins can
    # change places, so any of them will do. Of others the one with the smallest outcome is taken.
    while (cell := _first_cell(colours)) is not None:
        if _twins(cell, edges):
            colours = _refined(_apart(colours, cell[0]), edges)[0]
            continue
        outcomes = [_refined(_apart(colours, vertex), edges) for vertex in cell]
        colours = min(outcomes, key=lambda outcome: outcome[1])[0]
    return tuple(sorted(vertices, key=lambda vertex: colours[vertex]))


def _together(shape: Shape, a: int, b: int) -> tuple[bool, bool, bool]:
    return (
        shape.numa[a] is not None and shape.numa[a] == shape.numa[b],
        shape.roots[a] is not None and shape.roots[a] == shape.roots[b],
        shape.blocks is not None and shape.blocks.of[a] == shape.blocks.of[b],
    )


def _ranked(labels: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Return the labels of all pairs of GPUs as small integers in the same order.

    Small integers are compared faster than labels.
    """
    number = {label: rank for rank, label in enumerate(sorted({label for row in labels for label in row}))}  # type: ignore[type-var]
    return [[number[label] for label in row] for row in labels]


def _refined(colours: _Colours, edges: _Edges) -> tuple[_Colours, tuple[object, ...]]:
    """Return the colours of the GPUs after refinement, and a comparable description.

    GPUs are the vertices of a graph. In the refined colouring, all vertices of one colour see the same colours over the
    same edges. No coarser colouring has this property. The description is what each vertex sees, sorted.
    """
    wide = len(colours) + 1
    apart = [[edge * wide for edge in row] for row in edges]
    while True:
        seen = [(colour, tuple(sorted(map(add, row, colours)))) for colour, row in zip(colours, apart, strict=True)]
        ordered = sorted(seen)
        # A colour is the number of vertices before it, so that numbers stay comparable as colours split.
        first: dict[tuple[int, tuple[int, ...]], int] = {}
        for rank, what in enumerate(ordered):
            first.setdefault(what, rank)
        finer = tuple(first[what] for what in seen)
        if len(set(finer)) == len(set(colours)):
            return finer, tuple(ordered)
        colours = finer


def _first_cell(colours: _Colours) -> tuple[int, ...] | None:
    """Return the GPUs of the lowest colour that more than one GPU has.

    GPUs have equal colours as long as nothing distinguishes them. The search for a numbering then tries these GPUs one
    by one. The result is None if all GPUs have different colours.
    """
    cells: dict[int, list[int]] = {}
    for vertex, colour in enumerate(colours):
        cells.setdefault(colour, []).append(vertex)
    shared = [colour for colour, cell in cells.items() if len(cell) > 1]
    return tuple(cells[min(shared)]) if shared else None


def _apart(colours: _Colours, vertex: int) -> _Colours:
    """Return the colours of all GPUs, with a new colour for one of them (``vertex``).

    Colours are numbers. The new colour is just below that of the GPUs that had the same colour.
    """
    mine = colours[vertex]
    return tuple(colour + 1 if colour == mine and at != vertex else colour for at, colour in enumerate(colours))


def _twins(cell: tuple[int, ...], edges: _Edges) -> bool:
    """Return whether any two vertices of ``cell`` can be swapped without changing the graph.

    A vertex is a GPU. ``cell`` has the vertices of one colour, ``edges`` the links and the PCIe path of each pair.
    """
    first, *others = cell
    inside = edges[first][others[0]]
    if any(edges[a][b] != inside for a in cell for b in cell if a != b):
        return False
    outside = [vertex for vertex in range(len(edges)) if vertex not in cell]
    return all(edges[first][vertex] == edges[other][vertex] for other in others for vertex in outside)
