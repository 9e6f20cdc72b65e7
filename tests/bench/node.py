"""Figures of one node's agent in a process of its own, with a local API server: ``python -m tests.bench.node``.

Times are the caller's, over the kubelet's socket, and hold all that a prepare does: the claim is read from the API
server, files are synced to disk (``--folder``), the CDI spec is written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dradriver.api import names, slices
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node.claims.below import INSTANCE_TYPE
from dradriver.node.protos.dra.v1 import dra_pb2, dra_pb2_grpc
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.kubelet import FakeKubelet, dial
from tests.fakes.node import NODE, claim, eventually, parameters, result
from tests.paths import REPO

PROFILE, SERVER = "h100-x8-flat-vm", "hgx-h100"


class Agent:
    """The agent's process, and the kubelet's connection to it."""

    def __init__(self, root: Path, cdi: Path, api: FakeApiServer, *words: str) -> None:
        self._root = root
        self._cdi = cdi
        self._api = api
        self._words = words
        self.machine: Machine = profiles.load(PROFILE, seed=NODE)

    async def __aenter__(self) -> Agent:
        config = {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": self._api.config.url}}],
            "users": [{"name": "x", "user": {}}],
        }
        (self._root / "kubeconfig").write_text(yaml.safe_dump(config))
        words = (
            f"--node-name={NODE} --discovery=simulated --simulated-default={PROFILE} --kubelet-root={self._root} "
            f"--cdi-root={self._cdi} --kubeconfig={self._root}/kubeconfig --health-port=0"
        )
        self._began = time.monotonic()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dradriver", "node", *words.split(), *self._words, cwd=REPO
        )
        self._kubelet = FakeKubelet(self._root)
        await self._kubelet.__aenter__()
        await eventually(lambda: self._kubelet.seen and self._api.objects(RESOURCE_SLICES), within_s=30)
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
        results = [result("gpu", slices.device_name(self.machine.gpus[i].uuid), **more) for i in gpus]
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

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return round(int(line.split()[1]) / 1024, 1)


async def measure(folder: Path, *, rounds: int) -> dict[str, Any]:
    """Return all figures: milliseconds and MiB."""
    found: dict[str, Any] = {}
    for told in (False, True):
        with (
            tempfile.TemporaryDirectory(prefix="gt-", dir=folder) as root,
            tempfile.TemporaryDirectory(prefix="gt-", dir="/dev/shm") as cdi,  # as /var/run is on a node
        ):
            async with FakeApiServer() as api:
                labels = {INSTANCE_TYPE: "big"}
                api.put(NODES, {"metadata": {"name": NODE, "uid": "node-uid", "labels": labels}})
                words = (f"--nccl-server=big={SERVER}",) if told else ()
                async with Agent(Path(root), Path(cdi), api, *words) as agent:
                    found |= await _with_nccl(agent, Path(root)) if told else await _plain(agent, rounds)
    return found


async def _plain(agent: Agent, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "start_to_published_ms": round(agent.published_s * 1000),
        "rss_at_start_mib": agent.rss_mib(),
    }
    took = []
    for number in range(rounds):
        one = agent.put(f"c{number}", [0, 1])
        took.append(await agent.prepare(one))
        if number % 10 == 0:
            found.setdefault("again", []).append(await agent.prepare(one))
        await agent.unprepare(one)
    found["prepare_ms"] = _percentiles(took)
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
    given = options.parse_args(arguments)
    print(json.dumps(asyncio.run(measure(given.folder, rounds=given.rounds)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
