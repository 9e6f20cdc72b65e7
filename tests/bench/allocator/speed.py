"""How long a choice on one machine takes beside go-gpuallocator in the same run, and what tables cost to build.

``ours_s`` is the same question again, ``ours_first_s`` the first time (with ring, rank order and score, which
go-gpuallocator does not give), ``ours_other_sets_s`` questions with 200 different free sets, ``set_alone_first_s``
the set alone, the first time. All four need the machine's tables, which are built once for each kind of machine:
``tables_cpu_s``, the least of several, as nothing else on the host can make it less. ``other_vendors`` has how
many times as long machines without a prediction take as the same ones with it.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from dradriver.allocator import Whole, choose, tables_of
from dradriver.allocator.choice.best_set import best_set
from dradriver.topology import read_machine
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import NVIDIA
from tests.bench.allocator import peers
from tests.fakes import computed, machines

MACHINES: Mapping[str, Callable[[], Machine]] = {
    "dgx1-v100, 8 GPUs": machines.dgx1,
    "bridge pairs, 8 GPUs": machines.bridge_pairs,
    "bridge pairs, 16 GPUs": lambda: machines.bridge_pairs(16),
}
# Where nothing is predicted; beside them the same links as NVIDIA's would have them.
OTHERS = {"mi300x-x8": 8, "mi210-x8": 8, "mi250-x4": 8, "ascend-910a-x8": 8, "ascend-a3-x16": 16}
BUILT: Mapping[str, Callable[[], Machine]] = {
    **MACHINES,
    "pcie-box, 8 GPUs": machines.pcie_box,
    "dgx-h100, 8 GPUs": machines.dgx_h100,
    "dgx-2, 16 GPUs": lambda: read_machine("dgx2-v100"),
    "direct mesh, 16 GPUs": lambda: machines.direct_mesh(16),
    "ring of cubes, 16 GPUs": machines.double_cube,
    **{f"{name}, {gpus} GPUs": partial(read_machine, name) for name, gpus in OTHERS.items()},
}
GOALS = {(8, 2): 1, (8, 4): 1, (16, 2): 100, (16, 4): 100, (16, 8): 100}


def measure() -> dict[str, Any]:
    """Median seconds of one choice, and CPU seconds of building one machine's tables."""
    return {
        "choice": {name: _choices(build()) for name, build in MACHINES.items()},
        "tables_cpu_s": {name: _build(build) for name, build in BUILT.items()},
        "other_vendors": {name: _of_other_vendor(read_machine(name)) for name in OTHERS},
    }


def _of_other_vendor(machine: Machine) -> dict[str, float]:
    """CPU seconds of the tables and median seconds of a choice, over those of the same machine if it were NVIDIA's."""
    gpus = tuple(msgspec.structs.replace(gpu, vendor=NVIDIA.word) for gpu in machine.gpus)
    other = msgspec.structs.replace(machine, gpus=gpus, blocks=None, link_gbps=machine.link_gbps or 20.0)
    row = {"tables_times": _build(lambda: machine) / _build(lambda: other)}
    for count in (2, 4):
        own, theirs = (_first_choice(each, count) for each in (machine, other))
        row[f"choice_of_{count}_times"] = own / theirs
    return row


def _first_choice(machine: Machine, gpus: int) -> float:
    work = partial(choose, machine, range(len(machine.gpus)), Whole(containers=(gpus,)))
    work()  # tables
    return _median([_first(machine, work) for _ in range(60)])


def _choices(machine: Machine) -> dict[str, Any]:
    count = len(machine.gpus)
    found: dict[str, Any] = {}
    for gpus in (2, 4, 8) if count == 16 else (2, 4):
        request = Whole(containers=(gpus,))
        everything = list(range(count))
        choose(machine, everything, request)  # tables
        rng = random.Random(5)
        fresh = [sorted(rng.sample(everything, rng.randint(gpus, count))) for _ in range(200)]
        whole = partial(choose, machine, everything, request)
        alone = partial(best_set, tables_of(machine), (1 << count) - 1, gpus=gpus)
        row: dict[str, Any] = {
            "ours_s": _median([_timed(whole) for _ in range(300)]),
            "ours_first_s": _median([_first(machine, whole) for _ in range(30)]),
            "ours_other_sets_s": _median([_timed(partial(choose, machine, free, request)) for free in fresh]),
            "set_alone_first_s": _median([_first(machine, alone) for _ in range(30)]),
        }
        if not peers.why_not():
            with peers.GoAllocator(machine) as allocator:
                row["go_s"] = allocator.ask(everything, gpus, repeat=1 if count == 16 and gpus < 8 else 100).seconds
            row["times_faster"] = row["go_s"] / row["ours_s"]
            row["times_faster_set_alone"] = row["go_s"] / row["set_alone_first_s"]
            row["holds"] = row["times_faster"] >= GOALS[count, gpus]
        found[str(gpus)] = row
    return found


def _first(machine: Machine, work: Callable[[], object]) -> float:
    """Seconds of a choice that no cache of earlier choices helps; the tables are there."""
    computed.forget_choices(machine)
    return _timed(work)


def _build(build: Callable[[], Machine]) -> float:
    machine, least = build(), math.inf
    for _ in range(9):
        computed.forget()
        begun = time.process_time()
        tables_of(machine)
        least = min(least, time.process_time() - begun)
    return least


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _median(values: list[float]) -> float:
    return statistics.median(values)
