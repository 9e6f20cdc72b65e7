"""MAPA's policy Preserve on one simulated node, for ``placement_policies``.

Source: Ranganath and others, "MAPA: Multi-Accelerator Pattern Allocation Policy for Multi-Tenant GPU Servers", SC21,
arXiv 2110.03214. Only its abstract was readable here. The rules and the coefficients are those of the authors'
simulator, github.com/socal-ucr/MAPA at 15e58ab: ``src/MapaPolicies.hh`` (preserve), ``src/Props.hh`` (getPredictedBW)
and ``src/TopoUtils.hh`` (getPreservationScore).

* A job that is sensitive to bandwidth gets the set whose best ring has the largest *effective bandwidth*. A regression
  predicts it from the kinds of the ring's edges. All rings through the set are tried, and the best one counts.
* Any other job gets the set that *preserves* most: the GPUs that stay free have the largest sum of NVLink bandwidth
  between them.

How this differs from the authors' simulator:

* Each simulated job of several GPUs is sensitive, because ``--communication`` is a share of its time. One GPU has no
  ring.
* The authors fitted the model to a DGX-1 with V100, whose pairs have no, one or two links. Here more than two links
  count as two.
* In the authors' simulator, a sensitive job waits if no set is better than no ring at all. An example is two GPUs that
  have only PCIe. Here the job takes the best set.
* Among equal sets the lowest GPU numbers are taken. The authors' simulator takes the set that its pattern search finds
  first.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from dradriver.allocator.sets.masks import mask_of, positions_of
from dradriver.topology.machine import Machine

# A ring's edges of one and of two links are counted in one number: doubles * _DOUBLE + singles. No ring has 128 edges.
_SINGLE: Final = 1
_DOUBLE: Final = 128


@lru_cache(maxsize=65536)
def preserve(machine: Machine, free: int, gpus: int) -> int:
    """Return the free GPUs that MAPA's policy Preserve takes, as a mask of positions.

    The policy takes the set with the fastest ring. For one GPU, it keeps most links between the remaining GPUs.

    Args:
        machine: The node.
        free: Its free GPUs as a mask; at least ``gpus``.
        gpus: Number of GPUs to take.
    """
    if gpus == free.bit_count():
        return free
    sets = itertools.combinations(positions_of(free), gpus)
    if gpus == 1:
        return mask_of(max(sets, key=lambda places: preserved_links(machine, free ^ mask_of(places))))
    return mask_of(max(sets, key=lambda places: effective_bandwidth_gbps(machine, places)))


def preserved_links(machine: Machine, mask: int) -> int:
    """Return the number of links between the GPUs in ``mask``, which MAPA's policy leaves free.

    All links of a machine have one rate, so the number of links orders sets as their bandwidth does.
    """
    return sum(machine.links[a][b] for a, b in itertools.combinations(positions_of(mask), 2))


def effective_bandwidth_gbps(machine: Machine, places: Sequence[int]) -> float:
    """Return the effective bandwidth in GB/s that MAPA predicts for the best ring of some GPUs.

    MAPA is a published placement policy. Its regression uses the kinds of links in the ring.

    Args:
        machine: The node.
        places: The positions of two or more GPUs.
    """
    return _best_ring_gbps(tuple(tuple(_step(machine.links[a][b]) for b in places) for a in places))


def _step(links: int) -> int:
    return _DOUBLE if links > 1 else _SINGLE if links else 0


@lru_cache(maxsize=65536)
def _best_ring_gbps(steps: tuple[tuple[int, ...], ...]) -> float:
    """Return the predicted bandwidth of the best ring through all GPUs, GB/s.

    Args:
        steps: A square table: for each pair of GPUs a number for its links: ``_DOUBLE`` for two, 1 for one, 0 for PCIe
            only. The sum of these numbers in a ring tells how many edges of each kind it has.
    """
    size = len(steps)
    everything = (1 << size) - 1

    # paths[mask][last]: the counts of edges that a path from GPU 0 through all of ``mask`` to ``last`` can have. They
    # are the bits of a number, so that one more edge shifts all of them.
    paths: list[dict[int, int]] = [{} for _ in range(everything + 1)]
    paths[1][0] = 1
    for mask in range(1, everything + 1, 2):
        for last, counts in paths[mask].items():
            for place in positions_of(everything ^ mask):
                longer = paths[mask | 1 << place]
                longer[place] = longer.get(place, 0) | counts << steps[last][place]

    rings = functools.reduce(operator.or_, (counts << steps[last][0] for last, counts in paths[everything].items()))
    found = (divmod(number, _DOUBLE) for number in range(rings.bit_length()) if rings >> number & 1)
    return max(_predicted_gbps(double, single, size - double - single) for double, single in found)


def _predicted_gbps(double: int, single: int, pcie: int) -> float:
    """Return the bandwidth in GB/s that the authors' regression predicts for a ring.

    Args:
        double: The number of the ring's edges with two links.
        single: The number of edges with one link.
        pcie: The number of edges with PCIe only.
    """
    x, y, z = double, single, pcie
    linear = 16.39670455 * x + 4.536821878 * y + 1.55623404 * z
    inverse = -20.69484581 / (x + 1) - 9.467461958 / (y + 1) + 7.615106783 / (z + 1)
    pairs = -7.973335727 * x * y + 12.73323772 * y * z - 4.195655221 * x * z
    inverse_pairs = -8.413419363 / (x * y + 1) + 62.85125807 / (y * z + 1) + 27.41832588 / (x * z + 1)
    triplet = -5.114108079 * x * y * z - 46.97390071 / (x * y * z + 1)
    return linear + inverse + pairs + inverse_pairs + triplet
