"""The webhook while strangers hold thousands of connections: memory, and how long good reviews take meanwhile.

``python -m tests.bench.connections`` starts one replica as a child, with TLS. API servers, at 127.0.0.1, ask over a
connection that they keep, and over new ones. Pods of other addresses, 127.0.1.x, meanwhile open as many connections as
told, of each kind that there is, and open another for each that the server closes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import resource
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from tests.bench.webhook import review, started
from tests.paths import REPO

HEAD: Final = b"POST /mutate-pods HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
ANSWER_S: Final = 5.0  # how long the API server waits
PERIOD_S: Final = 0.05  # between two reviews of an API server

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def context() -> ssl.SSLContext:
    """Return a context that trusts everybody."""
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


class Bench:
    """What is measured on one server."""

    def __init__(self, port: int) -> None:
        self._port, self._tls = port, context()
        body = review()
        self._good = HEAD % len(body) + b"\r\n" + body
        self.took_ms: dict[str, list[float]] = {"kept": [], "new": []}
        self.failed: dict[str, int] = {"kept": 0, "new": 0}
        self.opened = 0

    async def connect(self, address: str, *, secure: bool = True) -> Streams:
        """Return a connection from an address."""
        return await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._tls if secure else None, local_addr=(address, 0)
        )

    async def ask(self, streams: Streams) -> None:
        """Send one good review and read the answer."""
        reader, writer = streams
        writer.write(self._good)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))

    async def api_server(self, how: str) -> None:
        """Ask again and again, until cancelled, over a connection that is kept or new ones."""
        streams = None
        while True:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(ANSWER_S):
                    streams = streams or await self.connect("127.0.0.1")
                    await self.ask(streams)
                self.took_ms[how].append(1000 * (time.perf_counter() - began))
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                self.failed[how] += 1
                streams = None
            if how == "new" and streams is not None:
                streams[1].transport.abort()
                streams = None
            await asyncio.sleep(PERIOD_S)

    async def stranger(self, address: str, kind: str) -> None:
        """Hold a connection of a kind, and another when it is closed, until cancelled."""
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, AssertionError):
                streams = await self.connect(address, secure=kind != "silent")
                self.opened += 1
                try:
                    await KINDS[kind](self, streams)
                    await streams[0].read()
                finally:
                    streams[1].transport.abort()
            await asyncio.sleep(1)

    async def nothing(self, streams: Streams) -> None:
        """Send nothing."""

    async def head(self, streams: Streams) -> None:
        """Send as much of a head as is read, and no end."""
        streams[1].write(HEAD % 10 + b"".join(b"X-%d: " % i + b"x" * 2000 + b"\r\n" for i in range(20)))

    async def part(self, streams: Streams) -> None:
        """Send the beginning of a large body."""
        streams[1].write(HEAD % (4 << 20) + b"\r\n" + b" " * 65536)

    async def again(self, streams: Streams) -> None:
        """Send good reviews all the time."""
        while True:
            await self.ask(streams)
            await asyncio.sleep(1)


KINDS: Final[dict[str, Callable[[Bench, Streams], Awaitable[None]]]] = {
    "silent": Bench.nothing,  # TCP, and no word of TLS
    "idle": Bench.nothing,
    "head": Bench.head,
    "body": Bench.part,
    "good, then idle": Bench.ask,
    "good all the time": Bench.again,
}


def mib(pid: int, what: str) -> float:
    """Return a figure of a process's memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


async def hold(port: int, *, kind: str, connections: int, addresses: int, seconds: float) -> int:
    """Hold connections of strangers, and return how many were opened."""
    bench = Bench(port)
    kinds = itertools.cycle(KINDS if kind == "all" else (kind,))
    held = [
        asyncio.create_task(bench.stranger(f"127.0.1.{1 + i % addresses}", next(kinds))) for i in range(connections)
    ]
    await asyncio.sleep(seconds)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    return bench.opened


async def measure(port: int, pid: int, *, kind: str, options: Sequence[str]) -> str:
    """Return what was seen of one kind of stranger, as a line of text."""
    bench = Bench(port)
    asking = [asyncio.create_task(bench.api_server(how)) for how in ("kept", "new")]
    await asyncio.sleep(1)
    command = (sys.executable, "-m", "tests.bench.connections", "--hold", str(port), "--kinds", kind, *options)
    holding = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=REPO)
    rss, files = [], []
    while holding.returncode is None:
        rss.append(mib(pid, "VmRSS"))
        files.append(len(os.listdir(f"/proc/{pid}/fd")))  # it never blocks
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(holding.wait(), 0.5)
    opened = int((await holding.communicate())[0])
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    told = []
    for how, took in bench.took_ms.items():
        ordered = sorted(took) or [float("nan")]
        p50, p99 = (ordered[int(len(ordered) * part)] for part in (0.5, 0.99))
        failed = f"{bench.failed[how]} of {len(took) + bench.failed[how]} failed"
        told.append(f"{how} p50 {p50:4.0f} p99 {p99:5.0f} max {ordered[-1]:5.0f} ms, {failed}")
    held = f"{opened:6,} opened, {max(files):5} files"
    return f"{kind:17} {held}   RSS at the end {rss[-1]:4.0f}, peak {mib(pid, 'VmHWM'):4.0f} MiB   {'   '.join(told)}"


def main() -> int:
    """Print the figures and return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.connections")
    parser.add_argument("--connections", type=int, default=10_000, help="that strangers hold (%(default)s)")
    parser.add_argument("--addresses", type=int, default=4, help="of strangers (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of each kind (%(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS, "all"), default=[*KINDS, "all"])
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    told = {key: getattr(options, key) for key in ("connections", "addresses", "seconds")}
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.hold:
        print(asyncio.run(hold(options.hold, kind=options.kinds[0], **told)))
        return 0
    print(
        f"{options.connections:,} connections of {options.addresses} addresses, {options.seconds:g} s each", flush=True
    )
    again = [text for key, value in told.items() for text in (f"--{key}", str(value))]
    for kind in options.kinds:
        with started("webhook", secure=True) as (port, pid):
            print(asyncio.run(measure(port, pid, kind=kind, options=again)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
