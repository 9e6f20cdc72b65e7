"""What all of these have in common: a control plane, the driver's webhook and controller, and one more process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from tests.bench.throughput import chart
from tests.bench.throughput.driver import Driver
from tests.cluster import ClusterError, why_not
from tests.cluster.errors import last_lines
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO

Object = dict[str, Any]
T = TypeVar("T")

PLANE: Final = "peers"
HEALTH: Final = 8091  # what they have by default is the driver's
_READY_S: Final = 120
_WAIT_S: Final = 60


def run(story: str, *arguments: str) -> int:
    """Run the module ``story`` next to a control plane, and return its exit status.

    Args:
        story: The module's name; it finds the control plane by ``PLANE``.
        arguments: What else it is told.
    """
    if reason := why_not():
        print(f"left out, no control plane: {reason}")
        return 0
    try:
        plane = Nodeless(PLANE)
        with plane.running():
            # Whoever enters other mounts stands in their root.
            command = [*plane.enter(), "env", f"--chdir={REPO}", sys.executable, "-m", story, *arguments]
            return subprocess.run(command, check=False, timeout=900).returncode
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1


class Kubectl:
    """The cluster as the admin sees it, in the namespace default."""

    def __init__(self, plane: Nodeless) -> None:
        self.run = chart.Kubectl(plane.binaries / "kubectl", plane.kubeconfig)

    async def apply(self, *objects: Object) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        await self.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=text)

    async def found(self, kind: str, prefix: str = "") -> list[Object]:
        """Return the objects of a kind whose names begin so."""
        found: list[Object] = json.loads(await self.run("get", kind, "-o", "json"))["items"]
        return [one for one in found if one["metadata"]["name"].startswith(prefix)]

    async def bound(self, prefix: str, count: int = 1) -> list[Object]:
        """Return the pods whose names begin so, once so many are on a node."""

        async def there() -> list[Object] | None:
            found = [one for one in await self.found("pods", prefix) if one["spec"].get("nodeName")]
            return found if len(found) == count else None

        return await eventually(f"{count} pods {prefix} are bound", there)


async def eventually(what: str, probe: Callable[[], Awaitable[T | None]]) -> T:
    """Return the probe's first true answer.

    Raises:
        AssertionError: None came in time.
    """
    try:
        async with asyncio.timeout(_WAIT_S):
            while not (answer := await probe()):
                await asyncio.sleep(0.2)
            return answer
    except TimeoutError:
        raise AssertionError(f"not within {_WAIT_S} s: {what}") from None


@contextlib.asynccontextmanager
async def driver(plane: Nodeless) -> AsyncIterator[None]:
    """Run the chart's webhook and controller for the length of the block; where that fails, say what they logged."""
    found = await chart.render(plane.helm, REPO, plane.folder / "helm")
    made = Driver(REPO, found, plane.folder / "driver", profiles=None)
    await made.prepare(chart.Kubectl(plane.binaries / "kubectl", plane.kubeconfig), plane.kubeconfig)
    async with made.running("webhook", "controller"):
        try:
            yield
        except BaseException:
            for log in sorted(plane.folder.glob("*/*.log")):
                sys.stderr.write(f"{log.name}: {last_lines(log)}\n")
            raise


@contextlib.asynccontextmanager
async def process(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str],
    *,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[None]:
    """Run a process for the length of the block, once it says at ``HEALTH`` that it is ready.

    Args:
        command: What is run.
        log: The file that it writes to.
        environment: Its variables beside ours.
        meanwhile: What it waits for before it is ready.

    Raises:
        ClusterError: It ended or is not ready in time; the message has the end of its log.
    """
    with log.open("ab") as out:
        started = await asyncio.create_subprocess_exec(
            *command, env=os.environ | environment, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        try:
            async with asyncio.timeout(_READY_S):
                if meanwhile is not None:
                    await meanwhile()
                while not await _ready():
                    if started.returncode is not None:
                        raise ClusterError(f"{command[0]} ended:\n{last_lines(log)}")
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise ClusterError(f"{command[0]} is not ready:\n{last_lines(log)}") from None
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


def output(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """Return what a command prints.

    Raises:
        ClusterError: It failed.
    """
    done = subprocess.run(
        command, check=False, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise ClusterError(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout


async def _ready() -> bool:
    try:
        async with aiohttp.request("GET", f"http://127.0.0.1:{HEALTH}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:  # it does not listen yet
        return False
