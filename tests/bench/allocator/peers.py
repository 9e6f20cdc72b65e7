"""Who else could choose: NVIDIA's go-gpuallocator, run as the Go module it is, first fit, and chance."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from dradriver.topology.machine import Machine, PathType

SOURCE = Path(__file__).resolve().parent.parent / "go-gpuallocator"
_GO_PATHS = {
    PathType.SELF: 0, PathType.SYS: 1, PathType.NODE: 2, PathType.PHB: 3, PathType.PXB: 4, PathType.PIX: 5,
}  # fmt: skip


class GoAnswer(NamedTuple):
    """The GPUs' numbers, -1 where the answer has padding, and the median time of one call."""

    gpus: tuple[int, ...]
    seconds: float

    @property
    def valid(self) -> bool:
        """Whether these are real GPUs."""
        return bool(self.gpus) and min(self.gpus) >= 0


class GoAllocator:
    """go-gpuallocator's best-effort policy for one machine, as a context."""

    def __init__(self, machine: Machine) -> None:
        # It knows NVLinks between GPUs, none over a switch.
        links = machine.links if not machine.switched else [[0] * len(machine.gpus)] * len(machine.gpus)
        self._described = {"links": links, "paths": [[_GO_PATHS[path] for path in row] for row in machine.paths]}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([str(binary())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._tell(self._described)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        self._process.communicate()

    def ask(self, free: Collection[int], gpus: int, *, repeat: int = 1) -> GoAnswer:
        """What it takes of the free GPUs."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._tell({"free": sorted(free), "gpus": gpus, "repeat": repeat})
        answer = json.loads(self._process.stdout.readline())
        return GoAnswer(tuple(answer["gpus"]), answer["ns"] / 1e9)

    def _tell(self, message: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()


def why_not() -> str:
    """Why go-gpuallocator cannot be asked here; empty where it can."""
    return "" if shutil.which("go") else "go is not installed"


def binary() -> Path:
    """The built program; Go's own cache makes a second build quick."""
    target = Path(tempfile.gettempdir()) / "bench-go-gpuallocator" / "ask"
    if not target.exists() or target.stat().st_mtime < (SOURCE / "main.go").stat().st_mtime:
        subprocess.run(["go", "build", "-o", str(target), "."], cwd=SOURCE, check=True)
    return target


def first_fit(free: Collection[int], gpus: int) -> tuple[int, ...]:
    """The lowest numbers: what DRA's scheduler takes of a node without constraints."""
    return tuple(sorted(free)[:gpus])


def every(free: Collection[int], gpus: int) -> list[tuple[int, ...]]:
    """All sets, each as likely where chance decides."""
    return list(itertools.combinations(sorted(free), gpus))
