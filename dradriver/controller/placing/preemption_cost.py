"""What it costs to end workloads, and how little it can cost on one node. Pure; sizes are what is asked for of a node.

One cost is less than another if its highest priority is lower, then if it is of fewer workloads, then if less GPU time
is lost: a workload of higher priority is never ended to spare two of lower.
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
        lost: The GPU time that they lose, in multiples of ``ROUNDED_S``.
    """

    priority: int
    workloads: int
    lost: int


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A workload, as far as it counts on one node.

    Attributes:
        key: The workload.
        priority: What its priority counts.
        lost_s: The GPU-seconds that are lost with all of it.
        frees: What of each amount that is lacked it has on the node.
        gpus: How many of its GPUs it has something of.
    """

    key: Key
    priority: int
    lost_s: float
    frees: tuple[int, ...]
    gpus: int = 0


def cost_of(pieces: Collection[Piece]) -> Cost:
    """Return what it costs to end these, at least one."""
    return Cost(
        max(piece.priority for piece in pieces),
        len(pieces),
        round(sum(piece.lost_s for piece in pieces) / ROUNDED_S),
    )


def least(pieces: Sequence[Piece], lacked: Sequence[int]) -> Cost | None:
    """Return a lower bound of the cost of freeing what a node lacks; None if impossible.

    No set of workloads that frees it costs less. Perhaps each set costs more.

    Args:
        pieces: The workloads that can end, each as far as it is on the node.
        lacked: How much of each resource the node has too little; ``Piece.frees`` has the same order.
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
    """Yield all choices of a few victims that free what is lacked, the one of the lowest cost first."""
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
