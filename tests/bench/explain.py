"""How soon ``gputopo explain`` says something on a large cluster: ``python -m tests.bench.explain [NODES] [RUNS]``.

A fake API server with so many nodes of eight GPUs, all but a few held, is read by the real command in a process of its
own, from its start on: the time to the first byte, which says what the pod itself says, and to the last. Beside them
what reading the same lists costs without looking at them, and a Python that does nothing.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.commands import CommandLine, command_line
from tests.fakes.gpucluster import GpuCluster

PROFILE = "dgx-h100"
_READ = """
import asyncio, sys
from pathlib import Path
from dradriver.kube import config
from dradriver.kube.client import Client
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
async def main():
    async with Client(config.from_kubeconfig(Path(sys.argv[1])), user_agent="bench") as client:
        kinds = NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
        await asyncio.gather(*(client.list(kind, type=lambda raw: None) for kind in kinds))
asyncio.run(main())
"""


def filled(nodes: int) -> GpuCluster:
    """Return a cluster whose nodes have two free GPUs each, and a pod that wants four."""
    cluster = GpuCluster()
    for number in range(nodes):
        name = f"node-{number:05d}"
        cluster.node(name, PROFILE)
        cluster.rival(f"claim-{number}", name, range(6))
    cluster.pod("next", 4, wishes={"required": "nvlink"})
    return cluster


async def timed(line: Sequence[str]) -> tuple[float, float, bytes]:
    """Run a command. Returns the seconds to its first byte and to its end, and what it wrote."""
    began = time.perf_counter()
    child = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    first = await child.stdout.read(1)
    first_s = time.perf_counter() - began
    rest = await child.stdout.read()
    assert await child.wait() == 0
    return first_s, time.perf_counter() - began, first + rest


async def served(shell: CommandLine, runs: int) -> None:
    """Time the commands against a server and print it."""
    python, config = sys.executable, str(shell.kubeconfig)
    explain = [str(Path(python).parent / "gputopo"), "explain", "next", "--kubeconfig", config]
    lines: dict[str, list[str]] = {
        "explain": explain,
        "explain -o json": [*explain, "-o", "json"],
        "the same lists, unread": [python, "-c", _READ, config],
        "python -c pass": [python, "-c", "pass"],
    }
    figures: dict[str, float] = {}
    for name, line in lines.items():
        taken = [await timed(line) for _ in range(runs)]
        firsts, lasts = [1000 * first for first, _, _ in taken], [1000 * last for _, last, _ in taken]
        figures[name] = statistics.median(lasts)
        print(
            f"{name:24} first byte {statistics.median(firsts):6.0f} ms (best {min(firsts):.0f})   "
            f"last {statistics.median(lasts):6.0f} ms (best {min(lasts):.0f})"
        )
    ratio = figures["explain"] / figures["the same lists, unread"]
    print(f"explain takes {ratio:.2f} times as long as reading the lists")


async def main(nodes: int, runs: int) -> None:
    """Make the cluster, serve it from a process of its own, and time the commands."""
    cluster = filled(nodes)
    with tempfile.TemporaryDirectory() as folder:
        async with command_line(cluster.store, Path(folder)) as shell:
            await served(shell, runs)


if __name__ == "__main__":
    asyncio.run(main(*(int(given) for given in (*sys.argv[1:], *("1000", "5")[len(sys.argv) - 1 :]))))
