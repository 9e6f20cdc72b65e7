"""``python -m tests.bench.parts [--seed N]``: parts of GPUs beside what a scheduler does alone, and how long one takes.

* ``day``: a day of mixed requests, 60 % of them parts, at equal load under each policy
  (``gputopo simulate --fractions``).
* ``MIG alone``: the same of slices alone, on GPUs that serve nothing else, as those of an A100 in MIG mode.
  ``moved at will`` is no policy: it shows what is left to be won (``moved.py``).
* ``one GPU``: slices come to and leave one full GPU; how often one that fits by counts finds no placement, by where
  slices are put: as ours are, at the highest free start, at the lowest, at any.
* ``decision``: one decision on 10,000 nodes of 8 GPUs that are in use by all kinds, milliseconds.
* ``turns``: one decision for two namespaces in turns, each with a share on every other node, beside the same where GPUs
  are not one namespace's at a time, by the controller's inventory of 1,000 and 5,000 nodes, milliseconds.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

import msgspec
import numpy as np

from dradriver.allocator import Amount, Fleet, Mig, Offer, Request, Share, SharePart, Strategy, Whole
from dradriver.allocator.parts.layouts import NONE, Layout, layout_of
from dradriver.allocator.request import MigPart, Part
from dradriver.api.base.objects import Node
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.cli.simulator import mixed_replay
from dradriver.cli.simulator.mixed_policies import POLICIES
from dradriver.cluster.gpus.inventory import Inventory
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.records.slice_records import read_slice
from dradriver.topology import profiles
from tests.bench.moved import Moved

GOAL_MS = 1.0
_NODES = 10_000


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.parts", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    for machine in ("dgx-a100", "hgx-h100"):
        for load in (0.8, 1.0, 1.3):
            _day(machine, nodes=32, load=load, seed=seed)
    for load in (0.8, 0.9, 1.0, 1.15, 1.3):
        _day("dgx-a100", nodes=16, load=load, seed=seed, parts=1.0, sliced=1.0)
    _one_gpu("hgx-h100", seed=seed)
    _decisions(seed=seed)
    print("turns, two namespaces: median of 100, ms")
    for nodes in (1_000, 5_000):
        alike = _turns(nodes, Mode(shared="mps"))
        own = _turns(nodes, Mode(shared="mps", exclusive_to="namespace"))
        print(f"  {nodes} nodes: {own:.2f}, {own / alike:.1f} x of {alike:.2f} where GPUs are anybody's")


def _turns(nodes: int, mode: Mode) -> float:
    table = NodeTable()
    inventory = Inventory(table)
    for number in range(nodes):
        name = f"node-{number:05d}"
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        table.set_node(name, msgspec.convert({"metadata": metadata, "spec": {}, "status": {}}, Node))
        machine = profiles.load("hgx-h100", seed=name)
        modes = {gpu.uuid: mode for gpu in machine.gpus}
        for piece in resource_slices.build(machine, node=name, node_uid=name, modes=modes):
            inventory.set_slice(None, read_slice(msgspec.Raw(json.dumps(piece).encode())))
        device = resource_slices.device_name(machine.gpus[0].uuid)
        inventory.hold((f"team-{number % 2}", f"claim-{number}"), {(name, device): (Amount(50, 20_000),)})
    request, took = Share(amounts=(Amount(25, 10_000),)), []
    fleet = inventory.fleet
    for turn in range(101):
        begun = time.perf_counter()
        fleet.rank(request, explain=False, tenant=inventory.tenant(f"team-{turn % 2}"))
        took.append(time.perf_counter() - begun)
    return sorted(took)[50] * 1e3


def _day(name: str, *, nodes: int, load: float, seed: int, parts: float = 0.6, sliced: float = 0.7) -> None:
    machines = [profiles.load(name)] * nodes
    arrivals = mixed_replay.drawn(6000, machines, load=load, parts=parts, seed=seed, sliced=sliced)
    found = {policy: mixed_replay.replay(machines, arrivals, policy=policy) for policy in POLICIES}
    found["moved at will"] = mixed_replay.replay(machines, arrivals, policy="moved at will", books=Moved(machines))
    print(f"{'day' if parts < 1 else 'MIG alone'}, {nodes} x {name}, load {load}")
    ours = found["ours"]
    for policy, result in found.items():
        more = ours.fractions_served / result.fractions_served - 1
        print(
            f"  {policy:16s} fractions {result.fractions_served:.1%} (ours {more:+.1%})  "
            f"slices {result.slices_served:.1%}  "
            f"wholes {result.whole_gpus_served:.1%}  GPU time {result.gpu_time_served:.1%}  empty GPUs "
            f"{result.empty_gpus:.1%}  quads {result.empty_quads:.1%}  {result.decision_s * 1e6:.0f} us"
        )


def _one_gpu(name: str, *, seed: int) -> None:
    layout = layout_of(profiles.load(name).gpus[0].profiles)
    assert layout is not None
    rng = random.Random(seed)
    starts: dict[str, Callable[[int, list[int]], int]] = {
        "ours": lambda cost, free: min(free, key=lambda start: (cost[start], -start)),  # type: ignore[index]
        "highest start": lambda _, free: max(free),
        "lowest start": lambda _, free: min(free),
        "any start": lambda _, free: rng.choice(free),
    }
    print(f"one GPU, {name}: of slices that fit by counts so many find no placement")
    for policy, pick in starts.items():
        print(f"  {policy:16s} {_lost(layout, pick, random.Random(seed)):.1%}")


def _lost(layout: Layout, pick: Callable[..., int], rng: random.Random) -> float:
    plain = [n for n, profile in enumerate(layout.profiles) if not set("+-") & set(profile.name)]
    slices = max(profile.size for profile in layout.profiles)
    compute = max(profile.compute for profile in layout.profiles)
    on: list[tuple[str, int]] = []
    asked = lost = 0
    while asked < 20_000:
        number = rng.choice(plain)
        profile = layout.profiles[number]
        there = [layout.profiles[layout.number[name]] for name, _ in on]
        if (
            sum(one.size for one in there) + profile.size > slices
            or sum(one.compute for one in there) + profile.compute > compute
        ):
            on.pop(rng.randrange(len(on)))  # full by counts: somebody leaves
            continue
        asked += 1
        state = layout.state(on)
        after = {start: layout.state([*on, (profile.name, start)]) for start in profile.starts}
        free = [start for start in profile.starts if _free(layout, on, number, start)]
        if not free:
            assert layout.cost[state, number] == NONE
            lost += 1
            on.pop(rng.randrange(len(on)))
            continue
        cost = {start: int(layout.worth[state] - layout.worth[after[start]]) for start in free}
        on.append((profile.name, pick(cost, free)))
    return lost / asked


def _free(layout: Layout, on: list[tuple[str, int]], number: int, start: int) -> bool:
    taken = {s for name, at in on for s in range(at, at + layout.profiles[layout.number[name]].size)}
    return taken.isdisjoint(range(start, start + layout.profiles[number].size))


def _decisions(*, seed: int) -> None:
    fleet, rng = Fleet(), random.Random(seed)
    machine, every = profiles.load("hgx-h100"), frozenset(range(8))
    for node in range(_NODES):
        name = f"node-{node:05d}"
        fleet.set_node(name, machine, every, row=node)
        fleet.set_offer(name, Offer(shared=every, sliced=every))
        on = {gpu: parts for gpu in every if (parts := _some(rng, gpu))}
        fleet.set_parts(name, on)
        fleet.set_free(name, [gpu for gpu in every if gpu not in on and rng.random() < 0.3])
    eligible = np.ones(_NODES, dtype=np.bool_)
    asked: dict[str, Request] = {
        "share": Share(amounts=(Amount(cores=25),)),
        "share, spread": Share(amounts=(Amount(cores=25),), strategy=Strategy.SPREAD),
        "slice": Mig(profiles=(("2g.20gb",),)),
        "two shares": Share(amounts=(Amount(cores=25), Amount(cores=50))),
        "two slices": Mig(profiles=(("2g.20gb", "3g.40gb"),)),
        "whole": Whole(containers=(1,)),
    }
    print(f"decision, {_NODES} nodes: median of 100, ms (goal {GOAL_MS} for one part)")
    for what, request in asked.items():
        took = []
        for _ in range(100):
            begun = time.perf_counter()
            fleet.rank(request, eligible=eligible, explain=False)
            took.append(time.perf_counter() - begun)
        print(f"  {what:16s} {sorted(took)[50] * 1e3:.2f}")


def _some(rng: random.Random, gpu: int) -> list[Part]:
    kind = rng.random()
    if kind < 0.3:
        cores = rng.choice(([25], [50], [25, 50], [10, 10], [30, 60]))
        return [SharePart(gpu=gpu, amount=Amount(each, each * 800)) for each in cores]
    if kind < 0.7:
        starts = rng.sample(range(7), rng.randint(1, 7))
        return [MigPart(gpu=gpu, profile="1g.10gb", start=start, size=1) for start in starts]
    return []


if __name__ == "__main__":
    main()
