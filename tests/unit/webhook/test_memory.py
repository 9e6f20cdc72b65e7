"""The server's memory while many large bodies come in at once: below the chart's limit, whatever they hold."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from dradriver.api.base import names
from tests.fakes.admission import body, defaulted, pod
from tests.paths import REPO

SERVER = """
import asyncio
import datetime
import sys
from webhook import certificates, server, tls
from webhook.admission import Admission

async def main():
    context = tls.server_context() if "--tls" in sys.argv else None
    if context is not None:
        bundle = certificates.renew(None, now=datetime.datetime.now(datetime.UTC), hosts=["webhook"])
        tls.load(context, certificate=bundle.certificate, key=bundle.key)
    handler = server.Endpoint(Admission(controller_user="c")).handle
    async with server.serve(handler, port=0, context=context, host="127.0.0.1") as port:
        print(port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
BESIDES_MIB = 32  # what certificates and the client of the API server take besides
SIZE = 6 << 20
WORDS = f'"annotations":{{"{names.POLICY}":"nvlink"}},"labels":{{"{names.LABEL}":"placed"}}'


def hostile(spec: str, *, metadata: str = WORDS, update: bool = False) -> bytes:
    made = f'{{"metadata":{{{metadata}}},"spec":{{{spec}}}}}'
    more = f'"operation":"UPDATE","oldObject":{made}' if update else '"operation":"CREATE"'
    request = f'{{"uid":"u","kind":{{"kind":"Pod"}},{more},"object":{made}}}'
    return f'{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}'.encode()


def many(form: str, *, size: int = SIZE) -> str:
    """As many different entries as fit into so many bytes; ``form`` has ``%06x`` where they differ."""
    return ",".join(form % i for i in range(size // (len(form % 0) + 1)))


CONTAINER, KEY, TEXT = '{"name":"%06x"}', '"%06x":""', '["%06x"]'
# Functions, because the 50 MB of text are needed only by the tests that send them.
BODIES: dict[str, Callable[[], bytes]] = {
    "skipped": lambda: hostile(f'"x":[{many(TEXT)}]'),
    "containers": lambda: hostile(f'"containers":[{many(CONTAINER)}]'),
    "claims": lambda: hostile(f'"resourceClaims":[{many(CONTAINER)}]'),
    "limits": lambda: hostile(f'"containers":[{{"name":"a","resources":{{"limits":{{{many(KEY)}}}}}}}]'),
    "environment": lambda: hostile(f'"containers":[{{"name":"a","env":[{many(CONTAINER)}]}}]'),
    "affinity": lambda: hostile(f'"affinity":{{{many(KEY)}}}'),
    "annotations": lambda: hostile("", metadata=WORDS.replace("}", f",{many(KEY)}}}", 1)),
    "update of gates": lambda: hostile(f'"schedulingGates":[{many(CONTAINER, size=SIZE // 2)}]', update=True),
}


@contextlib.contextmanager
def serving(*options: str) -> Iterator[tuple[int, Path]]:
    """Run a server of its own process; gives its port and the file that tells its memory."""
    command = [sys.executable, "-c", SERVER, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), Path(f"/proc/{process.pid}/status")
        finally:
            process.kill()


def peak_mib(status: Path) -> float:
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def most_mib() -> float:
    """Return what the chart lets the server take."""
    values = yaml.safe_load((REPO / "helm/gpu-topology-dra/values.yaml").read_text())
    return int(values["webhook"]["resources"]["limits"]["memory"].removesuffix("Mi")) - BESIDES_MIB


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*BODIES, "all of them"])
async def test_sixteen_large_bodies_at_once_stay_below_the_limit_and_a_small_one_is_answered(kind: str) -> None:
    bodies = [BODIES[kind]()] * 16 if kind in BODIES else [make() for make in BODIES.values()] * 2
    good = body(defaulted(pod(2, annotations={names.POLICY: "nvlink"})))
    with serving() as (port, status):
        url = f"http://127.0.0.1:{port}/mutate-pods"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def post(sent: bytes) -> int:
                async with session.post(url, data=io.BytesIO(sent)) as answer:
                    await answer.read()
                    return answer.status

            async with asyncio.TaskGroup() as group:
                posts = [group.create_task(post(sent)) for sent in bodies]
                async with session.post(url, json=good) as answer:
                    assert (await answer.json())["response"]["patchType"] == "JSONPatch"
            assert {task.result() for task in posts} <= {200, 429}
        assert peak_mib(status) < most_mib()


@pytest.mark.slow
@pytest.mark.parametrize(
    "length", [b"Content-Length: 8000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n7A1200\r\n"]
)
async def test_the_beginnings_of_hundreds_of_large_bodies_stay_below_the_limit(length: bytes) -> None:
    """Each connection sends more than any buffer has room for, over TLS, and then waits."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with serving("--tls") as (port, status):

        async def hold() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            try:
                writer.write(b"POST /mutate-pods HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n" + b" " * 400_000)
                await reader.readline()
            finally:
                writer.transport.abort()

        await asyncio.gather(*(hold() for _ in range(400)), return_exceptions=True)
        url = f"https://127.0.0.1:{port}/mutate-pods"
        sent = io.BytesIO(BODIES["limits"]())
        async with aiohttp.ClientSession() as session, session.post(url, data=sent, ssl=trusting) as answer:
            assert answer.status == 200
        assert peak_mib(status) < most_mib()
