"""What 150,000 pods of other people cost the controller: memory, and CPU while 100 pods a second start.

``python -m tests.bench.foreign_pods [PODS]``. A child process follows this one's API server by a real reflector;
nothing but the reading and storing of pods is measured, once as a WatchList and once as a LIST in pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from dradriver.api.base.pods import Pod
from dradriver.cluster.records.pod_records import Foreign, read
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import PODS

COUNT = 150_000
HEAVY = 1_500  # of them with annotations of 250 kB
ANNOTATION = b"y" * 250_000
STARTS_PER_S = 100
LOAD_S = 10.0
BATCH = 2**20


def template() -> bytes:
    """Return a pod's JSON as kubectl shows one of a Deployment, 6 kB, with holes for what differs."""
    fields: dict[str, Any] = {f"f:field-{number}": {"f:value": {}} for number in range(90)}
    labels = {"app.kubernetes.io/name": "web", "pod-template-hash": "7d9f8c6b5d"}
    container = {
        "image": "registry.example.com/team/web:1.2.3",
        "env": [{"name": f"SETTING_{number}", "value": "value"} for number in range(20)],
        "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [{"name": "token", "readOnly": True, "mountPath": "/var/run/secrets"}],
    }
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "PodScheduled", "ContainersReady")]
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-7d9f8c6b5d-%(number)06d",
            "namespace": "team-%(team)03d",
            "uid": "6ba7b810-9dad-11d1-80b4-%(number)012d",
            "resourceVersion": "%(version)d",
            "labels": labels,
            "annotations": {"example.com/note": "%(note)s"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": "%(node)s",
            "containers": [container | {"name": name} for name in ("main", "sidecar")],
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
        },
        "status": {"phase": "%(phase)s", "conditions": conditions},
    }
    return json.dumps(pod).encode()


class Source:
    """An API server that has pods and nothing else."""

    def __init__(self, count: int, *, watch_list: bool) -> None:
        self.count = count
        self.watch_list = watch_list
        self.loaded = asyncio.Event()
        self._template = template()
        self._version = 10**6 + count

    def pod(self, number: int, *, version: int = 0, node: bool = True, phase: bytes = b"Running") -> bytes:
        return self._template % {
            b"number": number,
            b"team": number // 500,
            b"version": version or 10**6 + number,
            b"note": ANNOTATION if number < HEAVY else b"short",
            b"node": b"node-%05d" % (number % 5000) if node else b"",
            b"phase": phase,
        }

    async def pods(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            with contextlib.suppress(ConnectionError):  # refresh leaves its watch
                return await self._watch(request)
            return web.Response()
        start, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", "0")) or self.count
        end = min(start + limit, self.count)
        token = b',"continue":"%d"' % end if end < self.count else b""
        items = b",".join(self.pod(number) for number in range(start, end))
        head = b'{"metadata":{"resourceVersion":"%d"%s},"items":[' % (self._version, token)
        return web.Response(body=head + items + b"]}", content_type="application/json")

    async def load(self, request: web.Request) -> web.Response:
        self.loaded.set()
        return web.Response()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        initial = "sendInitialEvents" in request.query
        if initial and not self.watch_list:
            return web.json_response({"kind": "Status", "code": 422}, status=422)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if initial:
            batch = bytearray()
            for number in range(self.count):
                batch += b'{"type":"ADDED","object":%s}\n' % self.pod(number)
                if len(batch) > BATCH:
                    await response.write(bytes(batch))
                    batch.clear()
            end = b'{"metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}'
            await response.write(bytes(batch) + b'{"type":"BOOKMARK","object":%s}\n' % (end % self._version))
        await self.loaded.wait()
        self.loaded.clear()
        begun = asyncio.get_running_loop().time()
        for start in range(int(STARTS_PER_S * LOAD_S)):
            await asyncio.sleep(begun + start / STARTS_PER_S - asyncio.get_running_loop().time())
            for kind, pod in self._start(start):
                await response.write(b'{"type":"%s","object":%s}\n' % (kind, pod))
        await asyncio.Event().wait()
        return response

    def _start(self, start: int) -> Iterator[tuple[bytes, bytes]]:
        """A pod comes, is bound, is reported on twice; an older one goes."""
        number = self.count + start
        for kind, node, phase in (
            (b"ADDED", False, b"Pending"),
            (b"MODIFIED", True, b"Pending"),
            (b"MODIFIED", True, b"Pending"),
            (b"MODIFIED", True, b"Running"),
        ):
            self._version += 1
            yield kind, self.pod(number, version=self._version, node=node, phase=phase)
        self._version += 1
        yield b"DELETED", self.pod(HEAVY + start, version=self._version)


async def follow(url: str) -> dict[str, Any]:
    """The child: return what following the source cost."""
    changes = 0
    nodes: dict[str, int] = {}

    def changed(change: Change[Pod | Foreign]) -> None:
        nonlocal changes
        changes += 1
        if isinstance(change.new, Foreign):
            nodes[change.new.node] = nodes.get(change.new.node, 0) + change.new.takes["cpu"]

    async with Client(ServerConfig(url=url), user_agent="bench") as client, asyncio.TaskGroup() as group:
        before = resident()
        reflector = Reflector(client, PODS, read, on_change=changed)
        running = group.create_task(reflector.run())
        begun = time.monotonic()
        await reflector.synced.wait()
        filled_s = time.monotonic() - begun
        count, after = len(reflector.store), resident()

        wanted = changes + 4 * int(STARTS_PER_S * LOAD_S)  # a pod that is not bound yet is not stored
        cpu, begun = time.process_time(), time.monotonic()
        await client.connection.request("GET", "/load")
        while changes < wanted:
            await asyncio.sleep(0.2)
        cpu, lasted = time.process_time() - cpu, time.monotonic() - begun

        await reflector.refresh(120)
        running.cancel()
    return {
        "pods": count,
        "rss_before_mib": round(before / 2**20, 1),
        "rss_after_mib": round(after / 2**20, 1),
        "bytes_a_pod": round((after - before) / count),
        "rss_after_refresh_mib": round(resident() / 2**20, 1),
        "rss_most_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1),
        "filled_s": round(filled_s, 1),
        "starts_cpu_percent": round(100 * cpu / lasted, 1),
    }


def resident() -> int:
    """Return this process's resident set in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(count: int, *, watch_list: bool) -> dict[str, Any]:
    """Return what a child process tells of following so many pods."""
    source = Source(count, watch_list=watch_list)
    app = web.Application()
    app.router.add_get("/api/v1/pods", source.pods)
    app.router.add_get("/load", source.load)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        command = ["-m", __spec__.name, "--follow", f"http://127.0.0.1:{runner.addresses[0][1]}"]
        child = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        told, _ = await child.communicate()
        if child.returncode:
            raise RuntimeError(f"the child ended with {child.returncode}")
        found: dict[str, Any] = json.loads(told)
        return found
    finally:
        await runner.cleanup()


def main(arguments: list[str]) -> int:
    """Print all figures and return the process's exit status."""
    if arguments[:1] == ["--follow"]:
        print(json.dumps(asyncio.run(follow(arguments[1]))))
        return 0
    count = int(arguments[0]) if arguments else COUNT
    for name, watch_list in (("WatchList", True), ("LIST", False)):
        print(json.dumps({name: asyncio.run(measure(count, watch_list=watch_list))}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
