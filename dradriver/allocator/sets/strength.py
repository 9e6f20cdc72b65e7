"""What sets compare by where no bandwidth can be predicted: the weakest step of the best ring, then all links inside.

Only NVIDIA's library has a model here (``busbw``). RCCL and HCCL search otherwise, and on an MI250 NCCL's model prefers
sets whose ring has a step over PCIe to sets that are linked throughout.
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
    """Return the strength of the links of each set: (2**g,), float32, 0 below two GPUs.

    About the GB/s of the weakest step, so that sets of unlike machines compare; but a direct link is always stronger
    than PCIe, and of links without a figure more are stronger.

    Args:
        steps: The kinds of steps, best first: (level, GB/s).
        weakest: Per subset, the number of its best ring's weakest step.
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
