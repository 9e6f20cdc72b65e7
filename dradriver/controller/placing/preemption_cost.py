"""Computes the cost of ending workloads, and a lower bound of it on one node. Pure.

A *victim* is a workload that preemption ends. A *piece* is the part of a running workload on one node. Costs are
compared by the highest priority, then by the number of workloads, then by the lost GPU time. So a workload of higher
priority is never ended to spare two of lower priority.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from dradriver.api.claims.pins import Key

ROUNDED_S: Final = 360.0  # GPU-seconds: what differs by less is equal, and then better sets decide
FEW: Final = 12  # workloads of a node of which every choice is looked at; of more they are spared one by one


class Cost(NamedTuple):
    """What it costs to end some workloads; smaller values are cheaper.

    Attributes:
        priority: The highest priority among the workloads.
        workloads: The number of workloads.
        lost: The GPU time that they lose, in multiples of ``ROUNDED_S`` GPU-seconds.
    """

    priority: int
    workloads: int
    lost: int


class Piece(msgspec.Struct, frozen=True, gc=False):
    """The part of a running workload on one node, for the search of victims.

    Attributes:
        key: The workload.
        priority: Its priority, limited to the highest that its tenant may use.
        lost_s: The GPU-seconds that are lost if the whole workload ends.
        frees: How much the end of the workload frees on the node, for each amount that the node lacks.
        gpus: How many GPUs of the node it uses, whole or in part.
    """

    key: Key
    priority: int
    lost_s: float
    frees: tuple[int, ...]
    gpus: int = 0


def cost_of(pieces: Collection[Piece]) -> Cost:
    """Return the cost of ending some workloads, at least one.

    Each of ``pieces`` is a workload's part on one node.
    """
    return Cost(
        max(piece.priority for piece in pieces),
        len(pieces),
        round(sum(piece.lost_s for piece in pieces) / ROUNDED_S),
    )


def least(pieces: Sequence[Piece], lacked: Sequence[int]) -> Cost | None:
    """Return a lower bound of the cost to free what a node lacks; None if impossible.

    No set of workloads that frees enough costs less. It is possible that each of these sets costs more.

    Args:
        pieces: The workloads that can end, each with its part on the node.
        lacked: How much of each resource the node lacks; ``Piece.frees`` has the same order.
    """
    # 1. The highest priority that has to end. Workloads end from the lowest priority up: count how many must end to
    #    free each amount. The amount that needs most of them decides.
    ordered = sorted(pieces, key=_priority)
    enough = 1 if ordered else 0
    for i, amount in enumerate(lacked):
        count, missing = 0, amount
        for piece in ordered:
            if missing <= 0:
                break
            missing -= piece.frees[i]
            count += 1
        if missing > 0:
            return None
        enough = max(enough, count)
    if not enough:
        return None
    priority = ordered[enough - 1].priority

    # 2. How few workloads up to this priority can be enough, if the largest end first. Then the least GPU time that so
    #    many workloads can lose. The two can belong to different sets, so this is a bound and no choice.
    within = ordered if ordered[-1].priority == priority else [piece for piece in ordered if piece.priority <= priority]
    workloads = max([1, *(_fewest([piece.frees[i] for piece in within], amount) for i, amount in enumerate(lacked))])
    lost_s = sum(sorted([piece.lost_s for piece in within])[:workloads])
    return Cost(priority, workloads, round(lost_s / ROUNDED_S))


def _priority(piece: Piece) -> int:
    return piece.priority


def _fewest(sizes: list[int], amount: int) -> int:
    count = 0
    for size in sorted(sizes, reverse=True):
        if amount <= 0:
            break
        amount -= size
        count += 1
    return count


def choices(pieces: Sequence[Piece], lacked: Sequence[int]) -> Iterator[tuple[Piece, ...]]:
    """Yield the sets of victims that free what a node lacks, cheapest first.

    The number of sets doubles with each workload, so call this only for few.

    Args:
        pieces: The workloads that can end, each with its part on the node.
        lacked: How much of each resource the node lacks; ``Piece.frees`` has the same order.
    """
    priorities = sorted({piece.priority for piece in pieces})
    for priority in priorities:
        within = [piece for piece in pieces if piece.priority <= priority]
        for workloads in range(1, len(within) + 1):
            found = [
                chosen
                for chosen in itertools.combinations(within, workloads)
                if max(piece.priority for piece in chosen) == priority and _frees(chosen, lacked)
            ]
            yield from sorted(found, key=lambda chosen: (cost_of(chosen), [piece.key for piece in chosen]))


def _frees(chosen: Collection[Piece], lacked: Sequence[int]) -> bool:
    return all(sum(piece.frees[i] for piece in chosen) >= amount for i, amount in enumerate(lacked))
