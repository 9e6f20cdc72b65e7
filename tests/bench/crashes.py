"""A node's agents killed at every line of prepare and unprepare: ``python -m tests.bench.crashes --seeds 10000``.

Each seed is a story of its own, and is replayed exactly: ``--seed 7``. GPUs are lost in it, refuse what they are told,
or stay in MIG mode, and the driver is loaded anew. In the end all is given back, and nothing may be left of anything:
no file, no spec, no instance on a GPU. With ``--rolling`` agents serve side by side and are replaced,
and the kubelet gives up calls that are under way.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections.abc import Sequence

from tests.fakes import rolling
from tests.fakes.crashes import Kill, Node
from tests.fakes.crowd import CLAIMS, MIG, MPS

SEEDS = 10_000
STEPS = 8


def story(seed: int) -> int:
    """Play one story and return the number of kills; what does not hold is an AssertionError."""
    draw = random.Random(seed)

    def kill() -> Kill | None:
        if draw.random() < 0.3:
            return None
        return Kill("line", draw.randrange(700)) if draw.random() < 0.7 else Kill("operation", draw.randrange(40))

    node = Node()
    try:
        for _ in range(STEPS):
            which, name = draw.randrange(2), draw.choice(sorted(CLAIMS))
            step = draw.random()
            if step < 0.5:
                node.prepare(which, name, kill(), kill())
            elif step < 0.84:
                known = sorted(node.told.keys() | node.unsure)
                node.unprepare(which, draw.choice(known) if known and draw.random() < 0.8 else name, kill(), kill())
            elif step < 0.88:
                node.reboot(which, kill())
            elif step < 0.91:
                node.reload(which, kill())
            elif step < 0.97:
                node.trouble(draw.choice((*MIG, MPS)), draw.choice(("lost", "pending", "refuses")))
            else:
                node.relent(which, kill())
            node.check()
        node.end()
    finally:
        node.close()
    return node.kills


def story_of_two(seed: int) -> int:
    """Play one story of agents side by side and return how many of them ended."""
    node = rolling.Node(seed)
    node.play()
    return node.ended


def _told(given: tuple[bool, int]) -> tuple[int, int, str]:
    of_two, seed = given
    logging.disable(logging.CRITICAL)
    try:
        return seed, (story_of_two if of_two else story)(seed), ""
    except BaseException:
        return seed, 0, traceback.format_exc()


def main(arguments: Sequence[str]) -> int:
    """Play the stories and print what was found; return 1 where something did not hold."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.crashes")
    options.add_argument("--seeds", type=int, default=SEEDS, help="how many (%(default)s)")
    options.add_argument("--first", type=int, default=0, help="the first (%(default)s)")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    options.add_argument("--seed", type=int, help="only this one")
    options.add_argument("--rolling", action="store_true", help="agents side by side")
    given = options.parse_args(arguments)
    if given.seed is not None:
        (story_of_two if given.rolling else story)(given.seed)
        return 0
    began, kills, broken = time.monotonic(), 0, []
    with multiprocessing.get_context("fork").Pool(given.jobs, maxtasksperchild=200) as pool:
        for seed, count, text in pool.imap_unordered(
            _told, [(given.rolling, given.first + number) for number in range(given.seeds)], chunksize=10
        ):
            kills += count
            if text:
                broken.append(seed)
                print(f"seed {seed}:\n{text}")
    print(f"{given.seeds} stories, {kills} agents died, {len(broken)} broken, {time.monotonic() - began:.0f} s")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
