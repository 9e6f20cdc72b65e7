"""How often a MIG instance finds no place although slices enough are free: ``python -m tests.bench.packing``.

Instances of random plain profiles come to one GPU and go again. Of those that would fit if what is there could be
moved, which nothing can do to a running program, it counts who finds no placement: by the node agent's packing, and by
taking the first free placement from either end.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from dradriver.node.devices.control_interface import Placed
from dradriver.node.vendors.nvidia.devices.mig_packing import Room, is_plain, pack, taken
from dradriver.topology.machine import MigProfile
from dradriver.topology.mig_limits import binding_limits
from dradriver.topology.profiles import simulated_mig_profiles

PRODUCTS: Final = ("NVIDIA H100 80GB HBM3", "NVIDIA A30")
Choose = Callable[[Sequence[MigProfile], Room, MigProfile], int | None]


def packed(profiles: Sequence[MigProfile], room: Room, profile: MigProfile) -> int | None:
    """The node agent's choice."""
    found = pack(profiles, room, [profile])
    return None if found is None else found[0]


def first(profiles: Sequence[MigProfile], room: Room, profile: MigProfile) -> int | None:
    """The lowest free start."""
    limits = binding_limits(tuple(profiles))
    return next((start for start in profile.starts if room.fits(profile, start, limits)), None)


def last(profiles: Sequence[MigProfile], room: Room, profile: MigProfile) -> int | None:
    """The highest free start: what a scheduler does with placements that are listed so."""
    limits = binding_limits(tuple(profiles))
    return next((start for start in reversed(profile.starts) if room.fits(profile, start, limits)), None)


def run(profiles: Sequence[MigProfile], choose: Choose, *, requests: int, load: float, seed: int) -> tuple[int, int]:
    """Return how many would fit if others could be moved, and how many of them found no place."""
    draw = random.Random(seed)
    plain = [one for one in profiles if is_plain(one)]
    by_id = {one.id: one for one in profiles}
    there: list[Placed] = []
    fitted = refused = 0
    for _ in range(requests):
        while there and draw.random() > load:
            there.pop(draw.randrange(len(there)))
        wanted = draw.choice(plain)
        if pack(profiles, Room(), [*(by_id[one.profile] for one in there), wanted]) is None:
            continue
        fitted += 1
        start = choose(profiles, taken(profiles, there), wanted)
        if start is None:
            refused += 1
        else:
            there.append(Placed(wanted.id, start))
    return fitted, refused


def main(arguments: Sequence[str]) -> int:
    """Print a line for each product and way of choosing."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.packing")
    options.add_argument("--requests", type=int, default=20_000, help="to each (%(default)s)")
    options.add_argument("--load", type=float, default=0.6, help="0 to 1: how rarely instances go (%(default)s)")
    options.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    given = options.parse_args(arguments)
    for product in PRODUCTS:
        profiles = simulated_mig_profiles.profiles(product)
        for name, choose in (("packed", packed), ("first", first), ("last", last)):
            began = time.perf_counter()
            fitted, refused = run(profiles, choose, requests=given.requests, load=given.load, seed=given.seed)
            spent_us = (time.perf_counter() - began) / given.requests * 1e6
            share = f"{refused} of {fitted} found no place, {refused / fitted:.2%}"
            print(f"{product:24} {name:8} {share}; {spent_us:.0f} us a request")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
