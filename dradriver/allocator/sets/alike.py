"""Which sets of a machine are alike because some of its GPUs are: only one set of each kind need be computed.

Two GPUs are *twins* if they can change places and leave the machine as it is: four below one PCIe switch, both of a
bridged pair. A set is then worth what the set is worth that has as many of each family of twins. Of 65,536 sets of
sixteen GPUs joined in bridged pairs 6,561 are left, of sixteen all joined to each other 17.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.sets.shape import Shape
from dradriver.allocator.sets.subsets import Bools, Ints


class Sets(NamedTuple):
    """Some sets of GPUs.

    Attributes:
        masks: (m,) int64.
        member: (g, m) bool, whether a GPU is in each of them.
        size: (m,) int64, how many are.
    """

    masks: Ints
    member: Bools
    size: Ints


def sets_of(masks: Ints, size: int) -> Sets:
    """Masks with what is always asked of them."""
    return Sets(masks, (masks >> np.arange(size)[:, None] & 1) != 0, np.bitwise_count(masks).astype(np.int64))


def first_alike(shape: Shape) -> Ints:
    """For each mask the lowest one that twins make of it: (2**g,), int64."""
    masks = np.arange(1 << shape.size)
    out = np.zeros_like(masks)
    for family in families(shape):
        lowest = np.concatenate(([0], np.bitwise_or.accumulate(np.left_shift(1, family))))
        out |= lowest[np.bitwise_count(masks & lowest[-1])]
    return out


def families(shape: Shape) -> list[list[int]]:
    """The GPUs, twins together: what a prediction reads of a machine is all that counts."""
    found: list[list[int]] = []
    for gpu in range(shape.size):
        family = next((family for family in found if _twins(shape, family[0], gpu)), None)
        if family is None:
            found.append([gpu])
        else:
            family.append(gpu)
    return found


def _twins(shape: Shape, a: int, b: int) -> bool:
    own = (shape.switch_links, shape.direct, shape.pcie_gbps)
    if any(values[a] != values[b] for values in own) or shape.links[a][b] != shape.links[b][a]:
        return False
    return all(
        shape.links[a][other] == shape.links[b][other]
        and shape.links[other][a] == shape.links[other][b]
        and shape.paths[a][other] == shape.paths[b][other]
        for other in range(shape.size)
        if other not in (a, b)
    )
