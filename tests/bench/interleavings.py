"""The controller among everything that can interleave with it: ``python -m tests.bench.interleavings --seeds 20000``.

Each seed is a story of its own, and is replayed exactly: ``--seed 7 --trace`` shows all that happened in it. Sets are
iterated in an order that a process draws by chance, so this one starts itself again with a fixed one.
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from tests.simulator.campaigns import CAMPAIGNS
from tests.simulator.run import Result, run

SEEDS = 20_000
LONGEST_S = 120  # of real time: a loop without an await never gives the simulator a chance to stop it
SHOWN = 20  # violations in full


def runs(seeds: range, *, jobs: int, tolerated: frozenset[str], campaigns: Sequence[str] | None) -> Iterator[Result]:
    """Give the results of all seeds as they come, from so many processes."""
    work = functools.partial(_limited, tolerated=tolerated, campaigns=campaigns)
    if jobs == 1:
        yield from map(work, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=500) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=10)


def _limited(seed: int, *, tolerated: frozenset[str], campaigns: Sequence[str] | None) -> Result:
    def ring(*_: object) -> None:
        raise TimeoutError(f"seed {seed} took more than {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST_S)
    try:
        return run(seed, tolerated=tolerated, campaigns=campaigns)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main(arguments: Sequence[str]) -> int:
    """Run the seeds and print what was found; return 1 where an invariant did not hold."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.interleavings")
    options.add_argument("--seeds", type=int, default=SEEDS, help="how many (%(default)s)")
    options.add_argument("--first", type=int, default=0, help="the first (%(default)s)")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    options.add_argument("--tolerate", action="append", default=[], help="an invariant that need not hold; repeatable")
    options.add_argument(
        "--campaign", action="append", choices=sorted(CAMPAIGNS), help="what is gone on with in each; repeatable"
    )
    options.add_argument("--seed", type=int, help="only this one")
    options.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    given = options.parse_args(arguments)
    tolerated = frozenset(given.tolerate)
    if given.seed is not None:
        result = run(given.seed, tolerated=tolerated, show=print if given.trace else None, campaigns=given.campaign)
        _show(result)
        return result.violation is not None
    began = time.monotonic()
    results: list[Result] = []
    seeds = range(given.first, given.first + given.seeds)
    for result in runs(seeds, jobs=given.jobs, tolerated=tolerated, campaigns=given.campaign):
        results.append(result)
        if result.violation is not None and sum(r.violation is not None for r in results) <= SHOWN:
            _show(result)
        if len(results) % 1000 == 0:
            print(f"{len(results)} seeds, {time.monotonic() - began:.0f} s", flush=True)
    _summary(results, time.monotonic() - began)
    return any(result.violation is not None for result in results)


def _show(result: Result) -> None:
    found = result.violation
    if found is None:
        print(f"seed {result.seed}: all held for {result.lasted_s:.0f} s, {result.writes} writes")
        return
    print(f"seed {found.seed} at {found.at_s:.3f} s: {found.name}: {found.text}")
    print("".join(f"    {line[:400]}\n" for line in found.last[-25:]), flush=True)


def _summary(results: Sequence[Result], took_s: float) -> None:
    failed: dict[str, list[int]] = {}
    met: collections.Counter[tuple[str, str]] = collections.Counter()
    for result in sorted(results, key=lambda result: result.seed):
        if result.violation is not None:
            failed.setdefault(result.violation.name, []).append(result.seed)
        met.update(result.met)
    print("faults met, by request:")
    for (request, what), count in sorted(met.items()):
        print(f"  {count:7}  {request}: {what}")
    writes, kills, lifted, bound, unsettled = (
        sum(getattr(result, name) for result in results) for name in ("writes", "kills", "lifted", "bound", "unsettled")
    )
    print(f"{writes} writes, {kills} kills, {lifted} pods lifted, {bound} bound; {unsettled} states never came to rest")
    for name, seeds in sorted(failed.items(), key=lambda item: -len(item[1])):
        listed = ", ".join(map(str, seeds[:12])) + " …" * (len(seeds) > 12)
        print(f"VIOLATED in {len(seeds)}: {name}: seeds {listed}")
    count = sum(len(seeds) for seeds in failed.values())
    print(
        f"{len(results)} seeds, {count} with violations; {took_s:.0f} s, {1000 * took_s / len(results):.0f} ms a seed"
    )


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.bench.interleavings", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    sys.exit(main(sys.argv[1:]))
