"""A checkout's controller and webhook as ordinary processes with the chart's service accounts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp

from tests.bench.throughput.chart import Chart, Kubectl
from tests.cluster.errors import ClusterError, last_lines

_READY_S = 120
_STOP_S = 30


class Driver:
    """The driver of one checkout, started and stopped as often as wanted.

    Attributes:
        tree: The checkout.
        chart: Its chart.
        pids: The processes that run now, by part.
    """

    def __init__(self, tree: Path, chart: Chart, folder: Path, *, profiles: Path | None) -> None:
        self.tree = tree
        self.chart = chart
        self.pids: dict[str, int] = {}
        self._folder = folder
        self._profiles = profiles

    async def prepare(self, kubectl: Kubectl, admin: Path) -> None:
        """Install the chart and write the parts' credentials."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await kubectl.apply(self.chart)
        for part in ("controller", "webhook"):
            self._write_kubeconfig(part, admin, await kubectl.token(part))

    def _write_kubeconfig(self, part: str, admin: Path, token: str) -> None:
        content = json.loads(admin.read_text())
        file = self._folder / f"{part}.token"
        file.write_text(token)
        # A pod's token is read from a file at every request, too.
        content["users"][0]["user"] = {"tokenFile": str(file)}
        self.kubeconfig(part).write_text(json.dumps(content))

    @contextlib.asynccontextmanager
    async def running(self, *parts: str) -> AsyncIterator[float]:
        """Run these parts for the length of the block; yields the seconds that the last one took to be ready.

        Raises:
            ClusterError: A part ended or is not ready in time; the message has the end of its log.
        """
        took = 0.0
        async with contextlib.AsyncExitStack() as stack:
            for part in parts:
                took = await stack.enter_async_context(self._part(part))
            yield took

    @contextlib.asynccontextmanager
    async def _part(self, part: str) -> AsyncIterator[float]:
        log = self._folder / f"{part}.log"
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(self._folder / "bytecode")  # an image has it, a checkout need not
        begun = time.monotonic()
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *self._command(part),
                cwd=self.tree,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            while not await _ready(self.chart.port(part, "--health-port")):
                if process.returncode is not None or time.monotonic() - begun > _READY_S:
                    raise ClusterError(f"{part} of {self.tree} is not ready:\n{last_lines(log)}")
                await asyncio.sleep(0.01)
            self.pids[part] = process.pid
            yield time.monotonic() - begun
            if process.returncode is not None:
                raise ClusterError(f"{part} of {self.tree} ended:\n{last_lines(log)}")
        finally:
            self.pids.pop(part, None)
            await _stop(process)

    def _command(self, part: str) -> Sequence[str | Path]:
        words: list[str | Path] = [sys.executable, "-m"]
        if self._profiles is not None:
            words += ["cProfile", "-o", self._profiles / f"{self.tree.name}-{part}.prof", "-m"]
        return [*words, *self.chart.arguments[part], f"--kubeconfig={self.kubeconfig(part)}"]

    def kubeconfig(self, part: str) -> Path:
        """Return the file with a part's credentials."""
        return self._folder / f"{part}.kubeconfig"


async def _ready(port: int) -> bool:
    try:
        async with aiohttp.request("GET", f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:  # it does not listen yet
        return False


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
