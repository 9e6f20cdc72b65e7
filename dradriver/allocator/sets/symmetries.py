"""Which sets of GPUs are equal because the machine is symmetric: only one of them is computed.

A permutation of the GPUs that leaves links and PCIe paths as they are is a *symmetry*, and turns a set into one that
is worth the same. *Twins* are two GPUs that can change places, all others staying: four below one PCIe switch, both of
a bridged pair. Of 65,536 sets of sixteen GPUs joined in bridged pairs 120 are left, of sixteen all joined to each other
17, of a DGX-1's 256 less than a third.
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
    """Return for each mask an equal one by symmetry, the same for all equal masks: (2**g,), int64."""
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
    """Yield symmetries that generate all others, together with the exchanges of twins.

    A symmetry is given as the position that each GPU moves to. From the last GPU back to the first: look for a symmetry
    that keeps all GPUs before it and moves it to a GPU that is not yet known to be alike.

    Args:
        labels: By pair of GPUs and, on the diagonal, by GPU: numbers that are equal where predictions see no
            difference.
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
    """A number for each pair of GPUs, and on the diagonal for each GPU: equal where predictions see no difference."""
    gpus = range(shape.size)
    pairs = [[(shape.links[a][b], shape.links[b][a], shape.paths[a][b], shape.paths[b][a]) for b in gpus] for a in gpus]
    number: dict[object, int] = {}
    labels = [[number.setdefault(pair, len(number)) for pair in row] for row in pairs]
    for gpu, row in enumerate(labels):
        seen = (shape.switch_links[gpu], shape.direct[gpu], shape.pcie_gbps[gpu], tuple(sorted(row)))
        row[gpu] = number.setdefault(seen, len(number))
    return labels


def _families(labels: _Labels) -> list[list[int]]:
    """The GPUs in families of twins: any two of a family can change places and nothing else differs."""
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
    """Masks of where each GPU may still go once ``gpu`` goes to ``there``."""
    out = [may & joined[there].get(row[gpu], 0) for row, may in zip(labels, left, strict=True)]
    out[gpu] = left[gpu] & 1 << there
    return out


def _completed(
    labels: _Labels, joined: list[dict[int, int]], left: list[int], done: int, steps: Iterator[int]
) -> _Order | None:
    """A symmetry in which each GPU goes where it may; None where none is found. ``done`` are placed already."""
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
