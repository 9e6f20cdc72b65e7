"""How long it takes to read a machine of eight GPUs, on the NVML test library: ``python -m tests.bench.discovery``.

The library answers at once, so this is our own time and that of the ctypes binding; a real driver's comes on top.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from dradriver.node.vendors.nvidia.discovery import binding
from tests.fakes import nvml
from tests.fakes.hardware import Server

_TIMES = 30


def main() -> int:
    """Print milliseconds (median), as JSON, and how many times as long as asking for the uuids alone."""
    found = {name: _measure(name) for name in ("dgx1-v100", "dgx-h100")}
    print(json.dumps(found, indent=2))
    return 0


def _measure(name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(name, Path(folder))
        with patch.dict(os.environ, server.environment()):
            uuids, whole = _median_ms(_uuids), _median_ms(server.read)
    return {"uuids_ms": round(uuids, 2), "whole_ms": round(whole, 2), "ratio": round(whole / uuids, 1)}


def _uuids() -> None:
    with binding.opened(driver_root=nvml.compiled()) as library:
        for index in range(library.count()):
            library.uuid(library.gpu(index))


def _median_ms(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    sys.exit(main())
