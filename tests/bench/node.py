"""Figures of one node's agent in a process of its own, with a local API server: ``python -m tests.bench.node``.

Times are the caller's, over the kubelet's socket, and hold all that a prepare does: the claim is read from the API
server, NVML is asked which processes are on the GPUs (the tests' library, eight H100), files are synced to disk
(``--folder``), the CDI spec is written. CPU times are all threads' of the agent: on a busy machine they say more.
``--toolkit 1.20.1`` adds the same on a host where the real ``nvidia-ctk`` of that release makes the base specification
(root; built by ``python -m tests.cluster build``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node.claims.host_server import INSTANCE_TYPE
from dradriver.node.protos.dra.v1 import dra_pb2, dra_pb2_grpc
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.bench import compiled
from tests.cluster.settings import NVIDIA_TOOLKITS
from tests.fakes import nvml
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.hardware import Server, cdi_specification
from tests.fakes.kubelet import FakeKubelet, dial
from tests.fakes.node import NODE, claim, eventually, parameters, result
from tests.fakes.server import complete
from tests.paths import REPO
from tests.programs.host import Host

HARDWARE, PROFILE, SERVER = "dgx-h100", "h100-x8-flat-vm", "hgx-h100"


class Agent:
    """The agent's process, and the kubelet's connection to it."""

    def __init__(self, root: Path, cdi: Path, api: FakeApiServer, machine: Machine, *words: str) -> None:
        self._root = root
        self._cdi = cdi
        self._api = api
        self._words = words
        self._machine = machine

    async def __aenter__(self) -> Agent:
        config = {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": self._api.config.url}}],
            "users": [{"name": "x", "user": {}}],
        }
        (self._root / "kubeconfig").write_text(yaml.safe_dump(config))
        words = (
            f"--node-name={NODE} --kubelet-root={self._root} --cdi-root={self._cdi} "
            f"--kubeconfig={self._root}/kubeconfig --health-port=0"
        )
        environment = compiled.environment()
        self._began = time.monotonic()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dradriver", "node", *words.split(), *self._words, cwd=REPO, env=environment
        )
        self._kubelet = FakeKubelet(self._root)
        await self._kubelet.__aenter__()
        await eventually(lambda: self._kubelet.seen and self._api.all(RESOURCE_SLICES), within_s=30)
        self.published_s = time.monotonic() - self._began
        self._dialled = dial(Path(next(iter(self._kubelet.seen.values())).endpoint))
        self._stub = dra_pb2_grpc.DRAPluginStub(await self._dialled.__aenter__())  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._dialled.__aexit__(None, None, None)
        await self._kubelet.__aexit__(None, None, None)
        self.process.terminate()
        await self.process.wait()

    def put(self, name: str, gpus: Sequence[int], **more: Any) -> dra_pb2.Claim:
        """Put an allocated claim on the API server."""
        results = [result("gpu", resource_slices.device_name(self._machine.gpus[i].uuid), **more) for i in gpus]
        stored = self._api.put(RESOURCE_CLAIMS, claim(name, results=results, config=[parameters()]))["metadata"]
        return dra_pb2.Claim(namespace=stored["namespace"], name=stored["name"], uid=stored["uid"])

    async def prepare(self, one: dra_pb2.Claim) -> float:
        """Prepare a claim and return the milliseconds that it took."""
        began = time.perf_counter()
        answer = await self._stub.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(claims=[one]), timeout=45)
        took = time.perf_counter() - began
        assert not answer.claims[one.uid].error, answer.claims[one.uid].error
        return took * 1000

    async def unprepare(self, one: dra_pb2.Claim) -> None:
        asked = dra_pb2.NodeUnprepareResourcesRequest(claims=[one])
        answer = await self._stub.NodeUnprepareResources(asked, timeout=45)
        assert not answer.claims[one.uid].error, answer.claims[one.uid].error

    def cpu_ms(self) -> float:
        """Return the CPU time that the threads which run now have used, in milliseconds."""
        used_ns = 0
        for thread in Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # it has ended: one that read the machine
                used_ns += int(thread.read_text().split()[0])
        return used_ns / 1e6

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return round(int(line.split()[1]) / 1024, 1)


async def measure(folder: Path, *, rounds: int, toolkit: str = "") -> dict[str, Any]:
    """Return all figures: milliseconds and MiB."""
    with tempfile.TemporaryDirectory() as server:
        hardware = _hardware(Path(server))
        async with _agent(folder, *hardware) as (agent, _):  # its modules are compiled for the next
            await agent.prepare(agent.put("first", [0]))
        async with _agent(folder, *hardware) as (agent, _):
            found = await _plain(agent, rounds)
    if toolkit:
        with tempfile.TemporaryDirectory() as server:
            async with _agent(folder, *_with_toolkit(Path(server), toolkit)) as (agent, _):
                found[f"with_nvidia_ctk_{toolkit}"] = await _plain(agent, rounds)
    machine, words = profiles.load(PROFILE, seed=NODE), f"--discovery=simulated --simulated-default={PROFILE}"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as policies:
        policies.write(f"nccl: {{servers: {{big: {SERVER}}}}}")
        policies.flush()
        async with _agent(folder, machine, *words.split(), f"--policies={policies.name}") as (agent, root):
            return found | await _with_nccl(agent, root)


@contextlib.asynccontextmanager
async def _agent(folder: Path, machine: Machine, *words: str) -> AsyncIterator[tuple[Agent, Path]]:
    with (
        tempfile.TemporaryDirectory(prefix="gt-", dir=folder) as root,
        tempfile.TemporaryDirectory(prefix="gt-", dir="/dev/shm") as cdi,  # as /var/run is on a node
    ):
        async with FakeApiServer() as api:
            labels = {INSTANCE_TYPE: "big"}
            api.put(NODES, {"metadata": {"name": NODE, "uid": "node-uid", "labels": labels}})
            async with Agent(Path(root), Path(cdi), api, machine, *words) as agent:
                yield agent, Path(root)


def _hardware(folder: Path) -> tuple[Machine, *tuple[str, ...]]:
    """Return a server with the tests' NVML and the options of an agent on it."""
    server = Server(HARDWARE, folder)
    server.sys.file("etc/cdi/nvidia.json", cdi_specification(server.machine))
    os.environ |= server.environment()
    return server.machine, "--discovery=nvml", f"--driver-root={nvml.compiled()}", f"--host-root={server.sys.root}"


def _with_toolkit(folder: Path, version: str) -> tuple[Machine, *tuple[str, ...]]:
    """Return a host with NVIDIA's toolkit, and the options of an agent on it."""
    machine = complete(profiles.load(HARDWARE))
    host = Host(folder, machine, version=version)
    os.environ.pop(nvml.TABLE, None)  # its library has a table beside it
    return machine, "--discovery=nvml", f"--driver-root={host.root}", f"--host-root={host.root}"


async def _plain(agent: Agent, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "start_to_published_ms": round(agent.published_s * 1000),
        "rss_at_start_mib": agent.rss_mib(),
    }
    took, cpu = [], [0.0, 0.0]
    for number in range(rounds):
        one = agent.put(f"c{number}", [0, 1])
        before = agent.cpu_ms()
        took.append(await agent.prepare(one))
        prepared = agent.cpu_ms()
        await agent.unprepare(one)
        cpu = [cpu[0] + prepared - before, cpu[1] + agent.cpu_ms() - prepared]
        if number % 10 == 0:
            await agent.prepare(one)
            found.setdefault("again", []).append(await agent.prepare(one))
            await agent.unprepare(one)
    found["prepare_ms"] = _percentiles(took)
    found["cpu_ms"] = {"a prepare": round(cpu[0] / rounds, 2), "an unprepare": round(cpu[1] / rounds, 2)}
    found["prepare_again_ms"] = _percentiles(found.pop("again"))
    found[f"rss_after_{rounds}_mib"] = agent.rss_mib()
    consumed = {"cores": "5", "memory": "1Gi"}
    many = [
        agent.put(f"s{number}", [number % 8], shareID=f"share-{number}", consumedCapacity=consumed)
        for number in range(100)
    ]
    began = time.perf_counter()
    each = await asyncio.gather(*map(agent.prepare, many))
    found["100_at_once_ms"] = {"all": round((time.perf_counter() - began) * 1000), **_percentiles(list(each))}
    await asyncio.gather(*map(agent.unprepare, many))
    found["rss_at_end_mib"] = agent.rss_mib()
    return found


async def _with_nccl(agent: Agent, root: Path) -> dict[str, Any]:
    took = []
    for number in range(100):
        one = agent.put(f"n{number}", range(8))
        took.append(await agent.prepare(one))
        assert list((root / "plugins" / names.DRIVER / "files" / one.uid).glob("*virtualTopology.xml"))
        await agent.unprepare(one)
    return {"nccl_file_and_prepare_ms": _percentiles(took)}


def _percentiles(took: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "most": round(max(took), 2)}


def main(arguments: Sequence[str]) -> int:
    """Print the figures as JSON."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.node")
    options.add_argument("--rounds", type=int, default=1000, help="prepares (%(default)s)")
    options.add_argument("--folder", type=Path, default=Path("/tmp"), help="the disk that is measured (%(default)s)")
    options.add_argument("--toolkit", choices=NVIDIA_TOOLKITS, default="", help="measure with its nvidia-ctk, too")
    given = options.parse_args(arguments)
    print(json.dumps(asyncio.run(measure(given.folder, rounds=given.rounds, toolkit=given.toolkit)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
