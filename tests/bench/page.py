"""What the page costs on a large cluster: ``python -m tests.bench.page [NODES] [UPDATES]``.

``gputopo serve`` runs as a process of its own against a fake API server with so many nodes of eight GPUs and 40 pods
that wait; Chromium opens the page. Then claims come and go one at a time, once with nobody who looks and once with one
reader, and what the process spends and sends for each is counted.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from playwright.async_api import Browser, async_playwright

from tests import needs
from tests.fakes.commands import CommandLine, command_line
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.serving import fleet
from tests.page.conftest import ARGUMENTS

RUNS = 5
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def rss_mib(pid: int) -> float:
    """Return the memory of a process."""
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@asynccontextmanager
async def served(shell: CommandLine) -> AsyncIterator[tuple[int, str]]:
    """Run the command; gives its process and the page's address."""
    line = (
        Path(sys.executable).parent / "gputopo",
        "serve",
        "--port",
        "0",
        "--no-key",
        "--kubeconfig",
        shell.kubeconfig,
    )
    child = await asyncio.create_subprocess_exec(*map(str, line), stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    try:
        yield child.pid, (await child.stdout.readline()).decode().strip()
    finally:
        child.terminate()
        await child.wait()


async def ready(url: str, nodes: int) -> bytes:
    """Wait until the page knows all nodes; return its first answer as it came."""
    async with aiohttp.ClientSession(auto_decompress=False) as plain, aiohttp.ClientSession() as client:
        while True:
            async with client.get(f"{url}api/state") as answer:
                if (await answer.text()).count('"node/') == nodes:
                    async with plain.get(f"{url}api/state") as packed:
                        return await packed.read()
            await asyncio.sleep(0.05)


async def painted(browser: Browser, url: str, nodes: int) -> None:
    """Open the page and print when something, and when every node, was painted."""
    firsts, alls = [], []
    for _ in range(RUNS):
        page = await browser.new_page()
        await page.goto(url)
        await page.locator(".tile").nth(nodes - 1).wait_for(state="attached")
        alls.append(await page.evaluate("new Promise((then) => requestAnimationFrame(() => then(performance.now())))"))
        firsts.append(await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        await page.close()
    print(f"first paint {statistics.median(firsts):.0f} ms, all nodes {statistics.median(alls):.0f} ms")


async def updates(cluster: GpuCluster, pid: int, url: str, count: int) -> None:
    """Let claims come and go, one at a time, and print what that costs without a reader and with one."""
    for reader in (False, True):
        sent, told = 0, 0
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{url}api/state") as answer:
                mark = (await answer.json())["mark"]
            stream = await client.get(f"{url}api/events?since={mark}") if reader else None
            before = cpu_s(pid)
            for number in range(count):
                cluster.rival(f"bench-{number % 2}", "node-00000", range(number % 7))
                if stream is None:
                    await asyncio.sleep(1)
                    continue
                async with asyncio.timeout(30):
                    while not (line := await stream.content.readline()).startswith(b"data:"):
                        pass
                sent, told = sent + len(line), told + 1
            spent = (cpu_s(pid) - before) / count
            if stream is not None:
                stream.close()
        said = f", {sent / told:.0f} bytes" if told else ""
        print(f"an update {'with one reader' if reader else 'that nobody reads'}: {1000 * spent:.0f} ms of CPU{said}")


async def main(nodes: int, count: int) -> None:
    """Make the cluster, serve its API and its page, and print the figures."""
    cluster = fleet(nodes)
    for number in range(40):
        cluster.pod(f"next-{number}", 8, wishes={"required": "nvlink"})
    with tempfile.TemporaryDirectory() as folder:
        async with command_line(cluster.store, Path(folder)) as shell:
            began = time.perf_counter()
            async with served(shell) as (pid, url), async_playwright() as playwright:
                first = await ready(url, nodes)
                taken = time.perf_counter() - began
                print(f"{nodes} nodes: read {taken:.1f} s after the start, {cpu_s(pid):.1f} s of CPU")
                print(f"first answer {len(first)} bytes, {rss_mib(pid):.0f} MiB of memory")
                browser = await playwright.chromium.launch(executable_path=needs.chromium(), args=list(ARGUMENTS))
                await painted(browser, url, nodes)
                await browser.close()
                await updates(cluster, pid, url, count)
                before = cpu_s(pid)
                async with aiohttp.ClientSession() as client:
                    for number in range(RUNS):
                        async with client.get(f"{url}api/pod?namespace=default&name=next-{number}") as answer:
                            assert answer.status == 200
                            await answer.read()
                print(f"a pod that is explained: {1000 * (cpu_s(pid) - before) / RUNS:.0f} ms of CPU")
                before = cpu_s(pid)
                await asyncio.sleep(10)
                print(f"nothing changes: {100 * (cpu_s(pid) - before) / 10:.1f} % of a core, {rss_mib(pid):.0f} MiB")


if __name__ == "__main__":
    asyncio.run(main(*(int(given) for given in (*sys.argv[1:], *("1000", "20")[len(sys.argv) - 1 :]))))
