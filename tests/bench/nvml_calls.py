"""How often the node agent calls NVML, on the tests' library: ``python -m tests.bench.nvml_calls``.

The library answers at once; a real driver takes tens of microseconds for most, and seconds where a GPU sleeps. So what
counts is how often it is asked, which is the same each time; upper bounds has
``tests/unit/node/vendors/nvidia/discovery/test_nvml_calls.py``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fakes import nvml_counts
from tests.fakes.hardware import Server

MACHINES = ("dgx-h100", "dgx-a100", "dgx1-v100")


def main(arguments: Sequence[str]) -> int:
    """Print the calls as JSON, and with ``--each`` every function's."""

    def told(calls: nvml_counts.Calls) -> object:
        return dict(calls.most_common()) if "--each" in arguments else calls.total()

    found: dict[str, object] = {}
    for name in MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            first, *_, steady = nvml_counts.readings(Server(name, Path(folder)), 3)
        found[name] = {"the first reading": told(first), "a steady reading": told(steady)}
    with tempfile.TemporaryDirectory() as folder:
        prepares = nvml_counts.prepares(Path(folder))
    found["a prepare"] = {kind: told(calls) for kind, calls in prepares.items()}
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
