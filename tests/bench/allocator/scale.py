"""One placement over many nodes, the memory that they take, and gangs."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from dradriver.allocator import Constraint, Fleet, GangRequest, NoPlaceError, Role, Strategy, Whole, place_gang
from dradriver.allocator.sets.subsets import Bools
from dradriver.topology.machine import Machine
from dradriver.topology.network_levels import LEVELS, location
from tests.fakes import machines

KINDS: tuple[Callable[[], Machine], ...] = (
    machines.dgx1, machines.dgx_h100, machines.bridge_pairs, machines.pcie_box,
)  # fmt: skip
REQUESTS = {
    "1 GPU": Whole(containers=(1,)),
    "2 GPUs": Whole(containers=(2,)),
    "4 GPUs, nvlink": Whole(containers=(4,), required=(Constraint.NVLINK,)),
    "8 GPUs": Whole(containers=(8,)),
    "3 GPUs, spread": Whole(containers=(3,), strategy=Strategy.SPREAD),
    "2 GPUs, a product": Whole(containers=(2,), product="NVIDIA A100*"),
}
GOALS_S = {10_000: 1e-3, 100_000: 10e-3}
CONTROLLER_NODES, GOAL_CONTROLLER_S = (200, 1_000, 5_000), 150e-6
GOAL_BYTES = 200e6
GANG_NODES, GOAL_GANG_S = 10_000, 10e-3
GOAL_SMALL_PARTS_S = 50e-3
GANGS = {
    "128 pods x 8 GPUs": GangRequest(pods=128, pod=Whole(containers=(8,))),
    "128 pods x 8 GPUs, CPU, memory, slots": GangRequest(pods=128, pod=Whole(containers=(8,)), needs=(8_000, 2**36, 1)),
    "the same and a launcher": GangRequest(
        pods=128,
        pod=Whole(containers=(8,)),
        needs=(8_000, 2**36, 1),
        roles=(Role(pod=Whole(containers=(1,)), pods=1, needs=(4_000, 2**33, 1)),),
    ),
    "128 pods x 8 GPUs, nvlink, fast network": GangRequest(
        pods=128, pod=Whole(containers=(8,), required=(Constraint.NVLINK,)), min_network_gbps=50
    ),
    "64 pods x 2 GPUs": GangRequest(pods=64, pod=Whole(containers=(2,))),
    "64 pods x 2 GPUs, spread": GangRequest(pods=64, pod=Whole(containers=(2,), strategy=Strategy.SPREAD)),
    "100,000 pods, refused": GangRequest(pods=100_000, pod=Whole(containers=(4,))),
}


def measure() -> dict[str, Any]:
    """Median seconds of a placement by number of nodes, bytes per fleet."""
    found: dict[str, Any] = {}
    for nodes, goal in GOALS_S.items():
        fleet = build(nodes)
        row: dict[str, Any] = {name: placement_s(fleet, request, nodes) for name, request in REQUESTS.items()}
        half = np.arange(nodes) % 2 == 0
        row["2 GPUs, half the nodes eligible"] = placement_s(fleet, REQUESTS["2 GPUs"], nodes, eligible=half)
        row["holds"] = max(row.values()) <= goal
        found[f"{nodes} nodes x 8 GPUs, seconds"] = row
        if nodes == GANG_NODES:
            found[f"gangs on {nodes} nodes, seconds"] = gangs_s(fleet)
            found[f"gangs on {nodes} nodes in small parts, seconds"] = small_parts_s(nodes)
    found["a controller's questions, seconds"] = controller_s()
    found["memory, 100,000 nodes"] = memory(100_000)
    return found


def build(nodes: int, *, kinds: tuple[Callable[[], Machine], ...] = KINDS, seed: int = 7) -> Fleet:
    """A cluster of mixed machines in random states of use."""
    rng = random.Random(seed)
    ready = [kind() for kind in kinds]
    fleet = Fleet()
    for number in range(nodes):
        machine = rng.choice(ready)
        count = len(machine.gpus)
        fleet.set_node(f"node-{number}", machine, rng.sample(range(count), rng.randint(0, count)), row=number)
    return fleet


def placement_s(fleet: Fleet, request: Whole, nodes: int, *, eligible: Any = None, rounds: int = 40) -> float:
    """Median seconds to rank, and to take the best place, the cluster changing in between as it would."""
    rng = random.Random(3)
    fleet.rank(request, eligible=eligible)  # tables
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        choice = fleet.rank(request, eligible=eligible)[0]
        fleet.set_free(choice.node, fleet.free(choice.node) - set(choice.gpus))
        took.append(time.perf_counter() - begun)
        name = f"node-{rng.randrange(nodes)}"
        fleet.set_free(name, range(8))
    return statistics.median(took)


def controller_s() -> dict[str, Any]:
    """Median seconds of what a controller asks for every pod and claim, by number of nodes, nine of ten eligible."""
    request = REQUESTS["4 GPUs, nvlink"]
    found: dict[str, Any] = {}
    for nodes in CONTROLLER_NODES:
        machine = KINDS[0]()
        eligible = np.arange(nodes) % 10 > 0
        mixed, empty = build(nodes), Fleet()
        one_kind, full = build(nodes, kinds=KINDS[:1]), build(nodes)
        for number in range(nodes):
            empty.set_node(f"node-{number}", machine, range(8), row=number)
            full.set_free(f"node-{number}", [number % 8])
        row = {
            "hit, four kinds in use": _rank_s(mixed, request, eligible),
            "hit, one kind in use": _rank_s(one_kind, request, eligible),
            "hit, all empty and equal": _rank_s(empty, request, eligible),
            "miss": _rank_s(full, request, eligible),
            "miss, explained": _rank_s(full, request, eligible, explain=True),
            "set_free": _set_free_s(mixed),
        }
        row["holds"] = row["hit, one kind in use"] <= GOAL_CONTROLLER_S
        found[f"{nodes} nodes"] = row
    return found


def _rank_s(fleet: Fleet, request: Whole, eligible: Bools, *, explain: bool = False, rounds: int = 200) -> float:
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        with contextlib.suppress(NoPlaceError):
            fleet.rank(request, eligible=eligible, explain=explain)
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def _set_free_s(fleet: Fleet) -> float:
    before = {name: fleet.free(name) for name in fleet.nodes}
    begun = time.perf_counter()
    for name, free in before.items():
        fleet.set_free(name, free)
    return (time.perf_counter() - begun) / len(before)


def gangs_s(fleet: Fleet, *, rounds: int = 9) -> dict[str, Any]:
    """Median seconds of placing each gang, on zones of 2,000 nodes, spines of 250 and leaves of 25."""
    fleet.set_levels(LEVELS, dict.fromkeys(LEVELS, 50))
    for number, name in enumerate(fleet.nodes):
        fleet.set_location(
            name,
            location(
                zone=f"z{number // 2000}", spine=f"s{number // 250}", leaf=f"l{number // 25}",
                gbps=50 if number % 3 else 25,
            ),
        )  # fmt: skip
    row: dict[str, Any] = {}
    rng = np.random.default_rng(3)
    most = np.array([128_000, 2**40, 110])
    amounts = rng.integers(0, most + 1, (len(fleet.nodes), 3))  # CPU in thousandths, bytes, slots
    for name, request in GANGS.items():
        took = []
        for _ in range(rounds + 1):  # the first builds tables
            begun = time.perf_counter()
            with contextlib.suppress(NoPlaceError):
                place_gang(fleet, request, amounts=amounts)
            took.append(time.perf_counter() - begun)
        row[name] = statistics.median(took[1:])
    row["holds"] = max(row.values()) <= GOAL_GANG_S
    return row


def small_parts_s(nodes: int, *, rounds: int = 5) -> dict[str, Any]:
    """Median seconds of placing gangs over so many parts: one of eight GPUs in use on each node, small leaves."""
    row: dict[str, Any] = {}
    for per_leaf, per_spine, pods in ((1, 2, 1_000), (1, 32, 1_000), (2, 16, 512), (4, 4, 128)):
        fleet, machine = Fleet(), KINDS[1]()
        for number in range(nodes):
            name, leaf = f"node-{number}", number // per_leaf
            fleet.set_node(name, machine, set(range(8)) - {number * 5 % 8}, row=number)
            fleet.set_location(name, location(zone="z", spine=f"s{leaf // per_spine}", leaf=f"l{leaf}"))
        request = GangRequest(pods=pods, pod=Whole(containers=(4,)))
        took = []
        for _ in range(rounds + 1):  # the first builds tables
            begun = time.perf_counter()
            place_gang(fleet, request)
            took.append(time.perf_counter() - begun)
        row[f"{pods} pods x 4 GPUs, leaves of {per_leaf}, {per_spine} a spine"] = statistics.median(took[1:])
    row["holds"] = max(row.values()) <= GOAL_SMALL_PARTS_S
    return row


def memory(nodes: int) -> dict[str, Any]:
    """Bytes that a fleet holds, each node with a machine and uuids of its own; tables and kinds apart."""
    fleet, machine = Fleet(), machines.dgx1()
    fleet.set_node("first", machine, range(8))
    tracemalloc.start()
    for number in range(nodes):
        gpus = (msgspec.structs.replace(gpu, uuid=f"GPU-{number}-{gpu.index}") for gpu in machine.gpus)
        fleet.set_node(f"node-{number}", msgspec.structs.replace(machine, gpus=tuple(gpus)), range(8))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {"bytes": held, "holds": held <= GOAL_BYTES}
