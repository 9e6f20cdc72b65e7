"""How good the chosen sets are by NCCL's own graph search, beside go-gpuallocator, first fit and chance."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from statistics import mean
from typing import Any

from dradriver.allocator import Request, choose
from dradriver.topology.machine import Machine
from tests.bench.allocator import peers
from tests.fakes import machines
from tests.paths import SHARED_DATA

JUDGED: Mapping[str, tuple[Callable[[], Machine], str]] = {
    "dgx1-v100": (machines.dgx1, "dgx1v-2.27.7.csv"),
    "rtx4090x8": (machines.pcie_box, "rtx4090x8-2switch-2.27.7.csv"),
}
Verdict = Mapping[tuple[int, ...], float]


def measure() -> dict[str, Any]:
    """By machine and number of GPUs: mean of chosen over best busbw, over all free sets larger than that number."""
    found: dict[str, Any] = {}
    for name, (build, file) in JUDGED.items():
        path = SHARED_DATA / "nccl_model" / file
        if not path.exists():
            return {"left_out": f"{path.name} is not here"}
        found[name] = _machine(build(), verdict(file))
    return found


def verdict(file: str) -> Verdict:
    """NCCL's bus bandwidth of every set."""
    with (SHARED_DATA / "nccl_model" / file).open() as text:
        return {
            tuple(sorted(int(gpu) for gpu in row["set"].split("+"))): float(row["busbw_8GB"])
            for row in csv.DictReader(text)
        }


def _machine(machine: Machine, true: Verdict) -> dict[str, Any]:
    count = len(machine.gpus)
    by_size: dict[str, Any] = {}
    with_go = not peers.why_not()
    for gpus in range(2, count):
        ours: list[float] = []
        first: list[float] = []
        chance: list[float] = []
        go: list[float] = []
        invalid = 0
        with peers.GoAllocator(machine) if with_go else nullcontext() as allocator:
            for mask in range(1 << count):
                free = [gpu for gpu in range(count) if mask >> gpu & 1]
                if len(free) <= gpus:
                    continue
                sets = peers.every(free, gpus)
                best = max(true[places] for places in sets)
                chosen = choose(machine, free, Request(containers=(gpus,))).gpus
                assert len(chosen) == gpus
                assert set(chosen) <= set(free)
                ours.append(true[chosen] / best)
                first.append(true[peers.first_fit(free, gpus)] / best)
                chance.append(mean(true[places] for places in sets) / best)
                if allocator is not None:
                    answer = allocator.ask(free, gpus)
                    invalid += not answer.valid
                    go.append(true[tuple(sorted(answer.gpus))] / best if answer.valid else 0.0)
        by_size[str(gpus)] = {
            "ours": mean(ours), "ours_worst": min(ours), "go_gpuallocator": mean(go) if go else None,
            "go_invalid": invalid, "first_fit": mean(first), "random": mean(chance), "free_sets": len(ours),
        }  # fmt: skip
    weights = [row["free_sets"] for row in by_size.values()]
    overall = {
        key: sum(row[key] * weight for row, weight in zip(by_size.values(), weights, strict=True)) / sum(weights)
        for key in ("ours", "first_fit", "random", *(("go_gpuallocator",) if with_go else ()))
    }
    return {"by_gpus": by_size, "mean": overall, "holds": overall["ours"] >= 0.999 and _none_below(by_size, 0.99)}


def _none_below(by_size: Mapping[str, Mapping[str, float]], least: float) -> bool:
    return all(row["ours"] >= least for row in by_size.values())
