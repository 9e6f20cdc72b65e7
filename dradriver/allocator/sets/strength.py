"""The strength of a set: the figure by which sets are compared if no bandwidth can be predicted. ``Facts`` calls it.

A ring leads through all GPUs of a set, and a step is the connection between two neighbours in it. The weakest step of
the best ring decides, then the number of links inside the set. Only NCCL, NVIDIA's library, has a model here
(``busbw``). RCCL and HCCL search in other ways. On an MI250, NCCL's model would prefer some sets whose ring has a step
over PCIe to sets with a ring of links.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dradriver.allocator.request import Level
from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.subsets import Floats, Ints

_APART: Final = 1.1  # a better step is at least this much stronger, so that no number of links makes up for it
_LINKS: Final = 0.09  # that all of a machine's links count for, at most


def of_sets(steps: tuple[tuple[Level, float], ...], weakest: Ints, linked: Ints) -> Floats:
    """Return the strength of each set: (2**g,) for g GPUs, float32; 0 below two GPUs.

    The strength is about the GB/s of the weakest step of the set's best ring, so that sets of different machines can be
    compared. But a direct link is always stronger than PCIe, and among links without a known rate, more links are
    stronger.

    Args:
        steps: The kinds of steps (connections between two GPUs), best first: (level, GB/s).
        weakest: (2**g,), the weakest step of each set's best ring, as an index into ``steps``.
        linked: (g, g), links of each pair.
    """
    own: list[float] = []
    for _, gbps in reversed(steps):
        own.append(max(gbps, own[-1] * _APART if own else 1.0))
    inside = subsets.pair_sums(linked.tolist())
    share = inside / max(float(inside[-1]), 1.0)
    count = np.bitwise_count(np.arange(len(weakest)))
    of_step = np.array(own[::-1] or [0.0], dtype=np.float32)[weakest]
    return np.where(count > 1, of_step * (1 + _LINKS * share), 0).astype(np.float32)
