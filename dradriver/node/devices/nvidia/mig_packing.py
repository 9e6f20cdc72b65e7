"""Where on a GPU MIG instances go, so that the largest ones stay possible: exact, a GPU has few placements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dradriver.node.devices.control import Placed
from dradriver.topology.machine import MigProfile


class Room(NamedTuple):
    """What of a GPU is taken.

    Attributes:
        slices: Memory slices, as a mask.
        compute: Number of compute slices.
        counts: Number of instances, by profile id.
    """

    slices: int = 0
    compute: int = 0
    counts: tuple[tuple[int, int], ...] = ()

    def fits(self, profile: MigProfile, start: int, most_compute: int) -> bool:
        """Return whether an instance can be put there."""
        return (
            not self.slices & span(profile, start)
            and self.compute + profile.compute <= most_compute
            and dict(self.counts).get(profile.id, 0) < profile.most
        )

    def put(self, profile: MigProfile, start: int) -> Room:
        """Return what is taken with an instance there."""
        counts = dict(self.counts)
        counts[profile.id] = counts.get(profile.id, 0) + 1
        return Room(self.slices | span(profile, start), self.compute + profile.compute, tuple(sorted(counts.items())))


def span(profile: MigProfile, start: int) -> int:
    """Return the memory slices of a placement as a mask."""
    return ((1 << profile.size) - 1) << start


def taken(profiles: Sequence[MigProfile], placed: Iterable[Placed]) -> Room:
    """Return what instances take; one of a profile that is not known takes all."""
    by_id = {profile.id: profile for profile in profiles}
    room = Room()
    for one in placed:
        if one.profile not in by_id:
            return Room(slices=-1, compute=_compute(profiles))
        room = room.put(by_id[one.profile], one.start)
    return room


def pack(profiles: Sequence[MigProfile], room: Room, wanted: Sequence[MigProfile]) -> list[int] | None:
    """Return where instances of these profiles go, in this order; None where they do not fit.

    Of all ways the one is taken that leaves room for the most instances of the largest profile, then of the next, and
    so on; among equals small ones go to high slices, as some large profiles can only be at the lowest. As with
    ``nvidia-smi`` nothing that is there is moved, so a later wish may find no place although enough slices are free.
    """
    order = sorted(range(len(wanted)), key=lambda n: (-wanted[n].size, -wanted[n].compute, wanted[n].id))
    sorted_wanted = [wanted[n] for n in order]
    best = max(
        (((left(profiles, after), starts), starts) for after, starts in _ways(profiles, room, sorted_wanted)),
        default=None,
    )
    if best is None:
        return None
    found = dict(zip(order, best[1], strict=True))
    return [found[n] for n in range(len(wanted))]


def left(profiles: Sequence[MigProfile], room: Room) -> tuple[int, ...]:
    """Return how many instances of each plain profile still fit, those of the largest first."""
    plain = sorted((p for p in profiles if is_plain(p)), key=lambda p: (-p.size, -p.compute, p.id))
    return tuple(_most(profile, room, _compute(profiles)) for profile in plain)


def is_plain(profile: MigProfile) -> bool:
    """Return whether a profile has nothing but its size: no ``+me``, ``-me``, ``+gfx``."""
    return not set("+-") & set(profile.name)


def _ways(
    profiles: Sequence[MigProfile], room: Room, wanted: Sequence[MigProfile], least: int = -1
) -> Iterator[tuple[Room, tuple[int, ...]]]:
    """Yield what is taken after each way of placing all, and the starts; alike instances in one order only."""
    if not wanted:
        yield room, ()
        return
    first, rest = wanted[0], wanted[1:]
    for start in first.starts:
        if start > least and room.fits(first, start, _compute(profiles)):
            alike = bool(rest) and rest[0].id == first.id
            for after, starts in _ways(profiles, room.put(first, start), rest, start if alike else -1):
                yield after, (start, *starts)


def _most(profile: MigProfile, room: Room, most_compute: int) -> int:
    """Return how many instances of one profile still fit: intervals of one length, taken from the lowest."""
    count, end = 0, 0
    for start in sorted(profile.starts):
        if start >= end and not room.slices & span(profile, start):
            count, end = count + 1, start + profile.size
    by_compute = (most_compute - room.compute) // profile.compute if profile.compute else math.inf
    by_count = profile.most - dict(room.counts).get(profile.id, 0)
    return int(max(0, min(count, by_compute, by_count)))


def _compute(profiles: Sequence[MigProfile]) -> int:
    return max((profile.compute for profile in profiles), default=0)
