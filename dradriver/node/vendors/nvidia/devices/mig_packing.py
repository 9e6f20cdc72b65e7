"""Which MIG instance a claim asks for, and where on a GPU it goes, so that the largest ones stay possible.

The choice is exact: a GPU has few placements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dradriver.node.devices.control_interface import Placed
from dradriver.node.errors import ClaimError
from dradriver.topology.machine import MigProfile
from dradriver.topology.mig_limits import Limit, binding_limits


class MigRequest(NamedTuple):
    """Which MIG instance a claim asks for; None is what it leaves open.

    Attributes:
        profile: Id of the profile of a published placement.
        name: Name of the profile that the claim's configuration has.
        start: First memory slice.
        memory: Memory slices that the claim was allocated of a GPU whose instances are made on demand.
        compute: Compute slices of such a GPU.
    """

    profile: int | None = None
    name: str | None = None
    start: int | None = None
    memory: int | None = None
    compute: int | None = None


class Room(NamedTuple):
    """What of a GPU is taken.

    Attributes:
        slices: Memory slices, as a mask.
        used: How much of each of the GPU's limits (engines, compute slices); empty if nothing is taken.
    """

    slices: int = 0
    used: tuple[int, ...] = ()

    def fits(self, profile: MigProfile, start: int, limits: Sequence[Limit]) -> bool:
        """Return whether a MIG instance of this profile can be packed at this start, by the GPU's slices and limits."""
        used = self.used or (0,) * len(limits)
        return not self.slices & span(profile, start) and all(
            taken + limit.needs[profile] <= limit.total for taken, limit in zip(used, limits, strict=True)
        )

    def put(self, profile: MigProfile, start: int, limits: Sequence[Limit]) -> Room:
        """Return what of a GPU is taken after a MIG instance of this profile is packed at this start."""
        used = self.used or (0,) * len(limits)
        then = (taken + limit.needs[profile] for taken, limit in zip(used, limits, strict=True))
        return Room(self.slices | span(profile, start), tuple(then))


def span(profile: MigProfile, start: int) -> int:
    """Return the memory slices of a MIG placement as a mask, for packing on one GPU."""
    return ((1 << profile.size) - 1) << start


def taken(profiles: Sequence[MigProfile], placed: Iterable[Placed]) -> Room:
    """Return the memory slices that MIG instances take of a GPU, for packing; one of an unknown profile takes all."""
    by_id = {profile.id: profile for profile in profiles}
    limits = binding_limits(tuple(profiles))
    room = Room()
    for at in placed:
        if at.profile not in by_id:
            return Room(slices=-1)
        room = room.put(by_id[at.profile], at.start, limits)
    return room


def requested(profiles: Sequence[MigProfile], device: str, asked: MigRequest) -> MigProfile:
    """Return the MIG profile that a claim requests by id, by name, or by slices.

    Args:
        profiles: The GPU's profiles.
        device: The device's name, for messages.
        asked: What the claim asks for.

    Raises:
        ClaimError: The GPU has none such, or it is more than the claim was allocated.
    """
    if asked.profile is not None:
        requested_text, matching = str(asked.profile), [profile for profile in profiles if profile.id == asked.profile]
    elif asked.name is not None:
        requested_text, matching = asked.name, [profile for profile in profiles if profile.name == asked.name]
    else:
        requested_text, sizes = (
            f"of {asked.memory} memory and {asked.compute} compute slices",
            (asked.memory, asked.compute),
        )
        # Plain: without extra media engines, which slices do not ask for.
        matching = [profile for profile in profiles if is_plain(profile) and (profile.size, profile.compute) == sizes]
    if not matching:
        known = ", ".join(sorted({profile.name for profile in profiles})) or "none"
        raise ClaimError(f"device {device}: its GPU has no MIG profile {requested_text}; it has {known}")
    chosen = matching[0]
    memory, compute = asked.memory, asked.compute
    if memory is not None and compute is not None and (chosen.size > memory or chosen.compute > compute):
        raise ClaimError(
            f"device {device}: {chosen.name} takes {chosen.size} memory and {chosen.compute} compute "
            f"slices; the claim was allocated {memory} and {compute}"
        )
    return chosen


def pack(profiles: Sequence[MigProfile], room: Room, wanted: Sequence[MigProfile]) -> list[int] | None:
    """Pack MIG instances of these profiles on a GPU; return their places in this order, or None if they do not fit.

    Of all ways the one is taken that leaves room for the most instances of the largest profile, then of the next, and
    so on; among equals small ones go to high slices, as some large profiles can only be at the lowest. As with
    ``nvidia-smi`` nothing that is there is moved, so a later wish may find no place although enough slices are free.
    """
    limits = binding_limits(tuple(profiles))
    order = sorted(range(len(wanted)), key=lambda n: (-wanted[n].size, -wanted[n].compute, wanted[n].id))
    sorted_wanted = [wanted[n] for n in order]
    best = max(
        (((left(profiles, after), starts), starts) for after, starts in _ways(limits, room, sorted_wanted)),
        default=None,
    )
    if best is None:
        return None
    start_of = dict(zip(order, best[1], strict=True))
    return [start_of[n] for n in range(len(wanted))]


def in_the_way(
    at: Placed | None, every: Sequence[MigProfile], there: Mapping[int, Placed], owned: Sequence[Placed]
) -> str:
    """Return the MIG instances that are in the way of packing, those without a ledger entry above all."""
    # ``at`` is the place that is wanted, None for any; ``owned`` are the placements that agents made.
    by_id = {profile.id: profile for profile in every}
    limits = binding_limits(tuple(every))

    # Two instances exclude each other if they share memory slices, or something that the GPU has only so much of.
    def excludes(other: MigProfile, start: int, at: Placed) -> bool:
        shared = (limit.needs[other] and limit.needs[by_id[at.profile]] for limit in limits)
        return bool(span(other, start) & span(by_id[at.profile], at.start)) or any(shared)

    unknown = [
        f"instance {number} ({by_id[other.profile].name if other.profile in by_id else other.profile} at {other.start})"
        for number, other in there.items()
        if other not in owned
        and (at is None or other.profile not in by_id or excludes(by_id[other.profile], other.start, at))
    ]
    if unknown:
        return f"no claim of this node made {', '.join(unknown)}; destroy it by nvidia-smi mig, or leave the GPU to it"
    return "other claims' instances are in the way"


def left(profiles: Sequence[MigProfile], room: Room) -> tuple[int, ...]:
    """Return how many MIG instances of each plain profile can still be packed on a GPU."""
    limits = binding_limits(tuple(profiles))
    plain = sorted((p for p in profiles if is_plain(p)), key=lambda p: (-p.size, -p.compute, p.id))
    return tuple(_most(profile, room, limits) for profile in plain)


def is_plain(profile: MigProfile) -> bool:
    """Return whether a MIG profile, for packing, has nothing but its size: no ``+me``, ``-me``, ``+gfx``."""
    return not set("+-") & set(profile.name)


def _ways(
    limits: Sequence[Limit], room: Room, wanted: Sequence[MigProfile], least: int = -1
) -> Iterator[tuple[Room, tuple[int, ...]]]:
    """Yield what is taken after each way of placing all, and the starts; alike instances in one order only."""
    if not wanted:
        yield room, ()
        return
    first, rest = wanted[0], wanted[1:]
    for start in first.starts:
        if start > least and room.fits(first, start, limits):
            alike = bool(rest) and rest[0].id == first.id
            for after, starts in _ways(limits, room.put(first, start, limits), rest, start if alike else -1):
                yield after, (start, *starts)


def _most(profile: MigProfile, room: Room, limits: Sequence[Limit]) -> int:
    """Return how many instances of one profile still fit: intervals of one length, taken from the lowest."""
    count, end = 0, 0
    for start in sorted(profile.starts):
        if start >= end and not room.slices & span(profile, start):
            count, end = count + 1, start + profile.size
    for taken, limit in zip(room.used or (0,) * len(limits), limits, strict=True):
        if limit.needs[profile]:
            count = min(count, (limit.total - taken) // limit.needs[profile])
    return max(0, count)
