"""How good the chosen sets are by NCCL's own graph search, beside go-gpuallocator, first fit and chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from statistics import mean
from typing import Any

from dradriver.allocator import Whole, choose, tables_of
from dradriver.topology import read_machine
from dradriver.topology.complete import complete
from dradriver.topology.machine import Machine
from tests.bench.allocator import peers
from tests.fakes import machines
from tests.verdicts import TRAINED, Verdict, verdict

BUILT: dict[str, tuple[Callable[[], Machine], str]] = {
    "dgx1-v100": (machines.dgx1, "dgx1v-2.27.7.csv"),
    "rtx4090x8": (machines.pcie_box, "rtx4090x8-2switch-2.27.7.csv"),
}
JUDGE = "2.27.7"  # the NCCL that gave the verdicts, and for which bandwidth is predicted
WITHIN = 0.01  # of NCCL's figure
LEAST = {"built": (0.999, 0.99), "xml": (0.999, 0.98), "text": (0.995, 0.98)}  # of all, and of any machine and number


def measure() -> dict[str, Any]:
    """By source of the machines, then by machine and number of GPUs: mean of chosen over best busbw.

    Over all free sets larger than that number. ``busbw`` is the share of all sets whose prediction is within 1 % of
    NCCL's figure.
    """
    sources: dict[str, Iterator[tuple[str, Machine, Verdict]]] = {
        "built": ((name, build(), verdict(file)) for name, (build, file) in BUILT.items()),
        "xml": _trained("xml"),
        "text": _trained("txt"),
    }
    if not TRAINED.exists():
        return {"left_out": f"{TRAINED} is not here"}
    return {source: _source(judged, *LEAST[source]) for source, judged in sources.items()}


def names() -> list[str]:
    """The machines with NCCL's verdict that were made up to learn from."""
    return sorted(path.stem for path in TRAINED.glob("*.xml"))


def _trained(suffix: str) -> Iterator[tuple[str, Machine, Verdict]]:
    for name in names():
        machine = complete(read_machine(TRAINED / f"{name}.{suffix}"), nccl_version=JUDGE)
        yield name, machine, verdict(f"train/{name}-{JUDGE}.csv")


def within(machine: Machine, true: Verdict) -> float:
    """The share of all sets whose predicted bandwidth is within 1 % of NCCL's."""
    busbw = tables_of(machine).busbw
    return mean(
        abs(float(busbw[sum(1 << place for place in places)]) / figure - 1) <= WITHIN for places, figure in true.items()
    )


def _source(judged: Iterable[tuple[str, Machine, Verdict]], least: float, least_of_any: float) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    close: list[tuple[float, int]] = []
    for name, machine, true in judged:
        rows[name] = {f"k={gpus}": row for gpus, row in _machine(machine, true)}
        close.append((within(machine, true), len(true)))
    cells = [row for by_size in rows.values() for row in by_size.values()]
    weight = sum(row["free_sets"] for row in cells)
    keys = [key for key in ("ours", "go_gpuallocator", "first_fit", "random") if key in cells[0]]
    overall = {key: sum(row[key] * row["free_sets"] for row in cells) / weight for key in keys}
    worst = min(row["ours"] for row in cells)
    return {
        "machines": rows,
        "mean": overall,
        "busbw": sum(share * sets for share, sets in close) / sum(sets for _, sets in close),
        "worst_cell": worst,
        "cells_below_.98": f"{sum(row['ours'] < 0.98 for row in cells)} of {len(cells)}",
        "holds": overall["ours"] >= least and worst >= least_of_any,
    }


def _machine(machine: Machine, true: Verdict) -> Iterator[tuple[int, dict[str, Any]]]:
    """For each number of GPUs how good each chooser is."""
    count = len(machine.gpus)
    with_go = not peers.why_not()
    with peers.GoAllocator(machine) if with_go else nullcontext() as allocator:
        for gpus in range(2, count):
            found: dict[str, list[float]] = {key: [] for key in ("ours", "first_fit", "random")}
            found |= {"go_gpuallocator": []} if with_go else {}
            invalid = 0
            for mask in range(1 << count):
                free = [gpu for gpu in range(count) if mask >> gpu & 1]
                if len(free) <= gpus:
                    continue
                sets = peers.every(free, gpus)
                best = max(true[places] for places in sets)
                chosen = choose(machine, free, Whole(containers=(gpus,))).gpus
                assert len(chosen) == gpus
                assert set(chosen) <= set(free)
                found["ours"].append(true[chosen] / best)
                found["first_fit"].append(true[peers.first_fit(free, gpus)] / best)
                found["random"].append(mean(true[places] for places in sets) / best)
                if allocator is not None:
                    answer = allocator.ask(free, gpus)
                    invalid += not answer.valid
                    found["go_gpuallocator"].append(true[tuple(sorted(answer.gpus))] / best if answer.valid else 0.0)
            row: dict[str, Any] = {key: mean(values) for key, values in found.items()}
            yield gpus, row | {"worst": min(found["ours"]), "go_invalid": invalid, "free_sets": len(found["ours"])}
