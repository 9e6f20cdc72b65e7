"""``python -m tests.bench.models FOLDER``: the choice on every machine of a folder against every ring of every set.

For RCCL's models of real machines (``tools/topo_expl/models`` of ROCm/rccl, BSD-3) or any other files that
``--machine`` takes, of machines whose bandwidth cannot be predicted.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.sets.tables import MAX_GPUS, tables_of
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from tests import rings

# MI250: where NCCL's model chose sets whose ring has a step over PCIe, though others are linked throughout.
_LINKED = {"topo_16p1h": 8, "topo_16p1h_vm": 8, "topo_8p1h": 4, "topo_8p1h_n1": 4}


def main() -> int:
    """Print a row for each machine, and the sums; 1 where a choice was not the best or a file could not be read."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.models", description=__doc__)
    parser.add_argument("folder", type=Path)
    files = sorted(path for path in parser.parse_args().folder.iterdir() if path.is_file())
    total = {"machines": 0, "unread": 0, "sets": 0, "asked": 0, "wrong": 0}
    print(f"{'machine':24} {'GPUs':>4} {'part':8} {'links':12} {'sets':>6} {'asked':>6} {'wrong':>5} {'s':>6}")
    for path in files:
        begun = time.perf_counter()
        try:
            machine = read_machine(path)
        except TopologyError as error:
            total["unread"] += 1
            print(f"{path.stem:24} {error}")
            continue
        if machine.vendor.predicted or not 1 < len(machine.gpus) <= MAX_GPUS:
            print(f"{path.stem:24} left out: {machine.vendor.word}, {len(machine.gpus)} GPUs")
            continue
        sets, asked, wrong = rings.compare(machine)
        if (gpus := _LINKED.get(path.stem)) is not None:
            chosen = best_set(tables_of(machine), (1 << len(machine.gpus)) - 1, gpus=gpus)
            wrong += chosen is None or not rings.weakest_is_a_link(machine, chosen)
        for key, value in (("machines", 1), ("sets", sets), ("asked", asked), ("wrong", wrong)):
            total[key] += value
        kinds = ", ".join(map(str, sorted({count for row in machine.links for count in row} - {0}))) or "none"
        took = time.perf_counter() - begun
        part = machine.gpus[0].architecture
        print(f"{path.stem:24} {len(machine.gpus):4} {part:8} {kinds:12} {sets:6} {asked:6} {wrong:5} {took:6.2f}")
    print(", ".join(f"{key} {value}" for key, value in total.items()))
    return int(bool(total["wrong"] or total["unread"]))


if __name__ == "__main__":
    sys.exit(main())
