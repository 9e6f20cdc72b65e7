"""Finds sets of GPUs that are equal because the machine is symmetric, so that only one of them must be computed.

``busbw`` calls it. A *symmetry* is a permutation of the GPUs that leaves links and PCIe paths unchanged. A symmetry
maps each set to an equally good set. *Twins* are two GPUs that can change places while all others stay. Examples are
four GPUs below one PCIe switch, or both GPUs of a bridged pair. Of the 65,536 sets of sixteen GPUs in bridged pairs,
120 remain. If sixteen GPUs are all joined to each other, 17 remain. Of a DGX-1's 256 sets, less than a third remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.shape import Shape
from dradriver.allocator.sets.subsets import Ints

_STEPS = 2000  # of one search for a symmetry: if it gives up, fewer sets are known as equal, which is only slower
_Labels: TypeAlias = list[list[int]]
_Order: TypeAlias = tuple[int, ...]


def representative_masks(shape: Shape) -> Ints:
    """Return for each set (bit mask) the set that stands for it.

    One set stands for all sets that are equal by a symmetry of the machine. The shape is (2**g,) for g GPUs, int64.
    """
    labels = _labels(shape)
    families = _families(labels)
    masks = np.arange(1 << shape.size)
    lowest = np.zeros_like(masks)  # as many of each family, from its first on
    for family in families:
        first = np.concatenate(([0], np.bitwise_or.accumulate(np.left_shift(1, family))))
        lowest |= first[np.bitwise_count(masks & first[-1])]
    kept = np.flatnonzero(lowest == masks)
    number = np.zeros_like(masks)
    number[kept] = np.arange(len(kept))
    # Symmetries turn families into families, so that each permutes what is kept.
    turned = [number[lowest[subsets.unions([1 << to for to in order])[kept]]] for order in symmetries(labels, families)]
    alike, before = np.arange(len(kept)), None
    while before is None or not np.array_equal(alike, before):
        before = alike
        for there in turned:
            alike = np.minimum(alike, alike[there])
        alike = alike[alike]
    out: Ints = kept[alike[number[lowest]]]
    return out


def symmetries(labels: _Labels, families: list[list[int]]) -> Iterator[_Order]:
    """Yield symmetries of the machine. Together with swaps of twins, they generate all symmetries.

    A symmetry is given as the position to which each GPU moves. The search goes from the last GPU back to the first.
    For each GPU, it looks for a symmetry that keeps all GPUs before it in place. The symmetry must move this GPU to a
    GPU that is not yet known to be equal.

    Args:
        labels: A number for each pair of GPUs and, on the diagonal, for each GPU. Numbers are equal if predictions see
            no difference.
        families: The GPUs in families of twins.
    """
    gpus = range(len(labels))

    # By GPU and label, the mask of the other GPUs that have this label with it.
    neighbours_by_label: list[dict[int, int]] = [{} for _ in gpus]
    for a, b in itertools.permutations(gpus, 2):
        neighbours_by_label[a][labels[b][a]] = neighbours_by_label[a].get(labels[b][a], 0) | 1 << b

    # ``_placed`` returns the masks of where each GPU may still go once one GPU has its place. Entry k: the masks of
    # where each GPU can still go if the first k GPUs stay where they are.
    places_left = [[sum(1 << b for b in gpus if labels[b][b] == labels[a][a]) for a in gpus]]
    for gpu in gpus:
        places_left.append(_placed(labels, neighbours_by_label, places_left[-1], gpu, gpu))

    # GPUs with the same number are known to be alike. Twins can change places without a search.
    class_of = list(gpus)
    twin_of = {twin: other for family in families for twin, other in itertools.pairwise(family)}
    for gpu in reversed(gpus):
        moves = [(gpu, twin_of[gpu])] if gpu in twin_of else []
        tried = set()
        for other in gpus:
            # One search for each class of GPUs is enough; it gives up after some steps.
            can_move = places_left[gpu][gpu] >> other & 1
            if can_move and class_of[other] != class_of[gpu] and class_of[other] not in tried:
                # The GPUs from 0 to ``gpu`` have their places: a mask of ``gpu`` + 1 bits.
                tried.add(class_of[other])
                steps = iter(range(_STEPS))
                symmetry = _completed(
                    labels,
                    neighbours_by_label,
                    _placed(labels, neighbours_by_label, places_left[gpu], gpu, other),
                    (2 << gpu) - 1,
                    steps,
                )
                if symmetry is not None:
                    moves += enumerate(symmetry)
                    yield symmetry
            # GPUs that the symmetry maps to each other are alike from now on.
            for a, b in moves:
                class_of = [class_of[a] if number == class_of[b] else number for number in class_of]
            moves = []


def _labels(shape: Shape) -> _Labels:
    """Return a number for each pair of GPUs and, on the diagonal, for each GPU.

    Numbers are equal if predictions see no difference. The diagonal has the number of the GPU itself, which is equal
    for GPUs with equal properties.
    """
    gpus = range(shape.size)
    pairs = [[(shape.links[a][b], shape.links[b][a], shape.paths[a][b], shape.paths[b][a]) for b in gpus] for a in gpus]
    number: dict[object, int] = {}
    labels = [[number.setdefault(pair, len(number)) for pair in row] for row in pairs]
    for gpu, row in enumerate(labels):
        seen = (shape.switch_links[gpu], shape.direct[gpu], shape.pcie_gbps[gpu], tuple(sorted(row)))
        row[gpu] = number.setdefault(seen, len(number))
    return labels


def _families(labels: _Labels) -> list[list[int]]:
    """Return the GPUs in families of twins: GPUs that are equal for predictions.

    Any two GPUs of a family can be swapped without changing the machine's links and paths (``labels``).
    """
    families: list[list[int]] = []
    for gpu, row in enumerate(labels):
        for family in families:
            first = family[0]
            other = labels[first].copy()
            other[first], other[gpu] = other[gpu], other[first]
            if other == row:
                family.append(gpu)
                break
        else:
            families.append([gpu])
    return families


def _placed(labels: _Labels, joined: list[dict[int, int]], left: list[int], gpu: int, there: int) -> list[int]:
    """Return for each GPU the bit mask of positions to which it may still move, after ``gpu`` was moved to ``there``.

    A symmetry is a permutation of GPUs that changes no links or paths. ``left`` are these masks before. ``joined`` has
    for each position the GPUs with each label to it.
    """
    out = [may & joined[there].get(row[gpu], 0) for row, may in zip(labels, left, strict=True)]
    out[gpu] = left[gpu] & 1 << there
    return out


def _completed(
    labels: _Labels, joined: list[dict[int, int]], left: list[int], done: int, steps: Iterator[int]
) -> _Order | None:
    """Return a symmetry in which each GPU moves to an allowed position.

    The result is None if none is found.

    Args:
        labels: A number for each pair of GPUs and, on the diagonal, for each GPU. Numbers are equal if predictions see
            no difference.
        joined: For each position, by label, the bit mask of the GPUs that have this label with it.
        left: For each GPU, the bit mask of positions to which it may still move.
        done: The bit mask of GPUs whose positions are fixed already.
        steps: An iterator that limits the search: each step takes one item, and the search ends when there are none.
    """
    if 0 in left or next(steps, None) is None:
        return None
    open_ = [(may.bit_count(), gpu) for gpu, may in enumerate(left) if not done >> gpu & 1]
    if not open_:
        return tuple(may.bit_length() - 1 for may in left)
    gpu = min(open_)[1]
    for there in (gpu, *(there for there in range(len(left)) if there != gpu)):  # most stay
        if left[gpu] >> there & 1:
            order = _completed(labels, joined, _placed(labels, joined, left, gpu, there), done | 1 << gpu, steps)
            if order is not None:
                return order
    return None
