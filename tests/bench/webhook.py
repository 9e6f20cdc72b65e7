"""Reviews a second of the webhook against bare aiohttp, each on one core: ``python -m tests.bench.webhook``.

The server is a child process on one core, the client has another: 16 connections that are kept alive, each with one
review under way, which creates a pod of two containers and four GPUs. ``--pods-per-second 20`` sends that many reviews
a second instead, and says what CPU one costs at that load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aiohttp import web

from dradriver.api.base import names
from tests.fakes.admission import CONTROLLER, body, defaulted, pod
from tests.paths import REPO
from webhook import certificates, server, tls
from webhook.admission import Admission

CONNECTIONS: Final = 16
SECONDS: Final = 5.0


def review() -> bytes:
    """Return the review of a typical GPU pod, as it is sent."""
    sent = pod(
        4,
        None,
        annotations={names.POLICY: "nvlink", names.PREFERRED: "same-numa", "example.com/team": "vision"},
        labels={"app": "train", "job-name": "train-7"},
    )
    for container in sent["spec"]["containers"]:
        container["command"] = ["torchrun", "--nproc-per-node=4", "train.py", "--config=/etc/train.yaml"]
        container["env"] = [{"name": f"TRAIN_{i}", "value": f"value of {i}"} for i in range(12)]
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}]
    return json.dumps(body(defaulted(sent)), separators=(",", ":")).encode()


class _Connection(asyncio.Protocol):
    """Sends the next request ``pause_s`` after the answer, and notes how long each answer took."""

    def __init__(self, request: bytes, took_s: list[float], pause_s: float) -> None:
        self._request, self._took_s, self._pause_s = request, took_s, pause_s
        self._left, self._sent_at = 0, 0.0
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self._left:
            self._head += data
            head, found, rest = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            assert head.startswith(b"HTTP/1.1 200"), head
            self._left = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            self._head, data = b"", rest
        self._left -= len(data)
        if not self._left:
            self._took_s.append(time.perf_counter() - self._sent_at)
            if self._pause_s:
                asyncio.get_running_loop().call_later(self._pause_s, self._send)
            else:
                self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    port: int, *, pid: int, secure: bool, seconds: float, pause_s: float = 0.0
) -> tuple[float, float, str]:
    """Return reviews a second, the microseconds of CPU that one costs the server, and these with latencies as text."""
    sent = review()
    request = (
        b"POST /mutate-pods HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    context = ssl.create_default_context() if secure else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    took_s: list[float] = []
    loop = asyncio.get_running_loop()
    for _ in range(CONNECTIONS):
        await loop.create_connection(
            lambda: _Connection(request % len(sent) + sent, took_s, pause_s), "127.0.0.1", port, ssl=context
        )
    await asyncio.sleep(seconds / 5)  # warm
    took_s.clear()
    begun, used = time.perf_counter(), cpu_s(pid)
    await asyncio.sleep(seconds)
    rate, ordered = len(took_s) / (time.perf_counter() - begun), sorted(took_s)
    cost_us = 1e6 * (cpu_s(pid) - used) / len(took_s)
    p50, p99 = (1000 * ordered[int(len(ordered) * part)] for part in (0.5, 0.99))
    told = f"{rate:8,.0f} reviews/s   p50 {p50:5.2f} ms   p99 {p99:5.2f} ms   {cost_us:4.0f} us of CPU each"
    return rate, cost_us, told


async def serve(what: str, *, secure: bool) -> None:
    """Serve until killed, after a line with the port."""
    context = None
    if secure:
        context = tls.server_context()
        bundle = certificates.renew(None, now=datetime.datetime.now(datetime.UTC), hosts=["webhook"])
        tls.load(context, certificate=bundle.certificate, key=bundle.key)
    answer = server.Endpoint(Admission(controller_user=CONTROLLER)).handle if what == "webhook" else _constant
    async with server.serve(answer, port=0, context=context, host="127.0.0.1") as port:
        print(port, flush=True)
        await asyncio.Event().wait()


async def _constant(http: web.BaseRequest) -> web.Response:
    await http.content.read()
    return web.Response(body=b"{}", content_type="application/json")


@contextlib.contextmanager
def started(what: str, *, secure: bool, core: int | None = None) -> Iterator[tuple[int, int]]:
    """Run a server while the block runs, on one core where one is given; gives its port and process id."""
    command = [sys.executable, "-m", "tests.bench.webhook", "--serve", what, *(["--tls"] if secure else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO) as process:
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


def main() -> int:
    """Print the figures and return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.webhook")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="by turns; the ratios are medians (%(default)s)")
    parser.add_argument("--pods-per-second", type=float, help="so many reviews a second, instead of as many as can be")
    parser.add_argument("--serve", choices=("webhook", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--tls", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, secure=options.tls))
        return 0
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, others or {first})
    print(f"a review of {len(review()):,} bytes, {CONNECTIONS} connections")
    if options.pods_per_second:
        pause_s = CONNECTIONS / options.pods_per_second
        costs = []
        for _ in range(options.rounds):
            with started("webhook", secure=True, core=first) as (port, pid):
                measured = measure(port, pid=pid, secure=True, seconds=options.seconds, pause_s=pause_s)
                _, cost_us, told = asyncio.run(measured)
            print(f"TLS    webhook  {told}", flush=True)
            costs.append(cost_us)
        cost_ms = statistics.median(costs) / 1000
        core = cost_ms * options.pods_per_second / 10
        print(f"at {options.pods_per_second:g} pods/s: {cost_ms:.2f} ms of CPU for each, {core:.1f} % of a core")
        return 0
    for secure in (False, True):
        rates, costs = [], []
        for _ in range(options.rounds):
            found = {}
            for what in ("bare", "webhook"):
                with started(what, secure=secure, core=first) as (port, pid):
                    found[what] = asyncio.run(measure(port, pid=pid, secure=secure, seconds=options.seconds))
                print(f"{'TLS' if secure else 'plain':5}  {what:7}  {found[what][2]}", flush=True)
            rates.append(found["webhook"][0] / found["bare"][0])
            costs.append(found["bare"][1] / found["webhook"][1])
        print(f"of bare aiohttp: {statistics.median(rates):.2f} of its rate, {statistics.median(costs):.2f} by CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
