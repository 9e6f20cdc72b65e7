"""What a process that knows nothing reads of a server: a reading without any earlier answer, session or handle."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dradriver.node.discovery import reading
from dradriver.node.discovery.nvidia import binding
from tests.fakes import nvml
from tests.fakes.hardware import Server

Read = tuple[Any, ...]


class Fresh:
    """Another process, which begins each reading anew."""

    def __init__(self) -> None:
        self._process = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._root = nvml.compiled()

    def read(self, server: Server) -> Read:
        """Return machine, faults and the GPUs that the driver calls sound."""
        return self._process.submit(_read, server.environment(), self._root, server.sys.root).result(timeout=60)

    def close(self) -> None:
        self._process.shutdown()


def _read(environment: dict[str, str], driver_root: Path, host_root: Path) -> Read:
    os.environ |= environment
    with binding.opened(driver_root=driver_root) as library:
        found = reading.discover(library, root=host_root)
    return found.machine, dict(found.faults), found.sound
