"""Finds the MIG instance that a claim requests, and its placement, so that the largest instances stay possible.

The code tries all placements, because a GPU has few of them. So the choice is the best possible one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dradriver.node.devices.control_interface import Placed
from dradriver.node.errors import ClaimError
from dradriver.topology.machine import MigProfile
from dradriver.topology.mig_limits import Limit, binding_limits


class MigRequest(NamedTuple):
    """The MIG instance that a claim requests; a field is None if the claim leaves it open.

    Attributes:
        profile: Id of the profile, if the claim has an instance that is published as a device of its own.
        name: Name of the profile in the claim's configuration.
        start: Number of the first memory slice.
        memory: Number of memory slices that the claim has, on a GPU whose instances are made on demand.
        compute: Number of compute slices that the claim has on this GPU.
    """

    profile: int | None = None
    name: str | None = None
    start: int | None = None
    memory: int | None = None
    compute: int | None = None


class Room(NamedTuple):
    """The part of a GPU that MIG instances take: what is not free for others.

    Attributes:
        slices: The taken memory slices, as a bit mask.
        used: The used amount of each of the GPU's limits (engines, compute slices); empty if nothing is taken.
    """

    slices: int = 0
    used: tuple[int, ...] = ()

    def fits(self, profile: MigProfile, start: int, limits: Sequence[Limit]) -> bool:
        """Return whether a MIG instance of this profile fits next to the instances that exist.

        Args:
            profile: The instance's profile.
            start: The instance's first memory slice.
            limits: The GPU's limits, for example of engines.
        """
        used = self.used or (0,) * len(limits)
        return not self.slices & span(profile, start) and all(
            taken + limit.needs[profile] <= limit.total for taken, limit in zip(used, limits, strict=True)
        )

    def put(self, profile: MigProfile, start: int, limits: Sequence[Limit]) -> Room:
        """Return the taken part of a GPU with one more MIG instance of this profile.

        Args:
            profile: The instance's profile.
            start: The instance's first memory slice.
            limits: The GPU's limits, for example of engines.
        """
        used = self.used or (0,) * len(limits)
        then = (taken + limit.needs[profile] for taken, limit in zip(used, limits, strict=True))
        return Room(self.slices | span(profile, start), tuple(then))


def span(profile: MigProfile, start: int) -> int:
    """Return the memory slices of a MIG instance as a bit mask.

    Bit n stands for slice n; ``start`` is the first slice.
    """
    return ((1 << profile.size) - 1) << start


def taken(profiles: Sequence[MigProfile], placed: Iterable[Placed]) -> Room:
    """Return the part of a GPU that these MIG instances take.

    If the profile of an instance is unknown, the whole GPU counts as taken.
    """
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
        asked: The claim's request.

    Raises:
        ClaimError: The GPU has no matching profile, or the profile is larger than the claim's allocation.
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
        raise ClaimError(f"device {device}: its GPU has no MIG profile {requested_text}. Its profiles: {known}")
    chosen = matching[0]
    memory, compute = asked.memory, asked.compute
    if memory is not None and compute is not None and (chosen.size > memory or chosen.compute > compute):
        raise ClaimError(
            f"device {device}: {chosen.name} takes {chosen.size} memory and {chosen.compute} compute slices, but "
            f"the claim was allocated {memory} and {compute}."
        )
    return chosen


def pack(profiles: Sequence[MigProfile], room: Room, wanted: Sequence[MigProfile]) -> list[int] | None:
    """Find places for MIG instances of these profiles on a GPU; return their starts.

    The starts are in the order of ``wanted``. The result is None if the instances do not fit.

    Of all ways to place the instances, the function chooses one that leaves room for the most further instances of the
    largest profile. Ties are decided by the next smaller profile, and so on. Among equal ways, instances go to high
    slices, the largest instance first, because some large profiles can start only at the lowest slice. As with
    ``nvidia-smi``, existing instances are not moved. So a later request may find no place although enough slices are
    free.

    Args:
        profiles: All profiles of the GPU.
        room: The part of the GPU that is taken already.
        wanted: The profiles of the instances to place.
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
    """Return a message that says why a MIG instance has no room on a GPU.

    If instances that no claim of this node made take the room, the message names them and says how to remove them.

    Args:
        at: The requested place; None for any place.
        every: The GPU's profiles.
        there: The existing instances by number.
        owned: The places of instances that agents made.
    """
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
        return (
            f"no claim of this node made {', '.join(unknown)}. Destroy it by nvidia-smi mig, "
            "or keep other claims off the GPU."
        )
    return "other claims' instances are in the way"


def left(profiles: Sequence[MigProfile], room: Room) -> tuple[int, ...]:
    """Return how many MIG instances of each plain profile still fit on a GPU, the largest profile first.

    ``room`` is the part of the GPU that is taken already. A plain profile has no extension such as ``+me`` (media
    engines) in its name.
    """
    limits = binding_limits(tuple(profiles))
    plain = sorted((p for p in profiles if is_plain(p)), key=lambda p: (-p.size, -p.compute, p.id))
    return tuple(_most(profile, room, limits) for profile in plain)


def is_plain(profile: MigProfile) -> bool:
    """Return whether a MIG profile has no extension such as ``+me``, ``-me`` or ``+gfx`` in its name."""
    return not set("+-") & set(profile.name)


def _ways(
    limits: Sequence[Limit], room: Room, wanted: Sequence[MigProfile], least: int = -1
) -> Iterator[tuple[Room, tuple[int, ...]]]:
    """Yield each way to place all these profiles: the part of the GPU that is then taken, and the starts.

    Instances of the same profile are placed in ascending order only, so no way occurs twice.

    Args:
        limits: The GPU's limits.
        room: The part that is taken already.
        wanted: The profiles to place.
        least: The instance of the first profile starts above this memory slice.
    """
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
    """Return how many instances of one profile still fit on a GPU, placed from the lowest slice.

    ``room`` is the part of the GPU that is taken already. ``limits`` are the GPU's limits.
    """
    count, end = 0, 0
    for start in sorted(profile.starts):
        if start >= end and not room.slices & span(profile, start):
            count, end = count + 1, start + profile.size
    for taken, limit in zip(room.used or (0,) * len(limits), limits, strict=True):
        if limit.needs[profile]:
            count = min(count, (limit.total - taken) // limit.needs[profile])
    return max(0, count)
