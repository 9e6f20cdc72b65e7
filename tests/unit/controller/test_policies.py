"""The policies file in the controller: weights that decide, and an Event about a file that is bad."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from dradriver.api.policies.policies_reader import read
from dradriver.controller.controller import Controller
from dradriver.controller.loop import policies
from dradriver.controller.main import parse, serve
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import CONFIG_MAPS, EVENTS, LEASES, PODS
from dradriver.topology.machine import Machine, PathType
from tests.fakes import machines
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.gpucluster import GpuCluster

MAP = {"metadata": {"name": "policies", "namespace": "system", "uid": "u-map"}}


def choice() -> Machine:
    """By links 0-1 and 0-2 are alike; 0-1 share a switch, 0-2 a NUMA node."""
    paths = [[PathType.SELF if a == b else PathType.SYS for b in range(3)] for a in range(3)]
    paths[0][1] = paths[1][0] = PathType.PIX
    links = {(0, 1): 2, (0, 2): 2, (1, 2): 2}
    return machines.build("choice", paths=paths, links=links, numa=(0, 1, 0), capability="7.0")


@pytest.mark.parametrize(("weights", "gpus"), [("", [0, 1]), ("weights: {pcie: 0}", [0, 2])])
async def test_the_administrators_weights_decide_among_equals(weights: str, gpus: list[int]) -> None:
    cluster = GpuCluster()
    cluster.node("a", None)
    cluster.machines["a"] = choice()
    cluster.publish("a", choice())
    cluster.worker.picture.weights = read(weights.encode(), source="x").preference
    cluster.pod("p", 2)
    await cluster.settle()
    assert cluster.gpus("p") == ("a", gpus)


async def test_the_levels_of_the_network_are_those_of_the_file_and_gangs_that_wait_follow_it() -> None:
    controller = Controller(Client(ServerConfig(url="http://127.0.0.1:1"), user_agent="test"))
    cluster = GpuCluster()
    controller.worker = cluster.worker
    for number in range(4):
        cluster.node(f"n{number}", labels={"example.com/rack": f"r{number % 2}"})
    for number in range(2):
        cluster.pod(f"p{number}", 8, wishes={"gang": "train", "gang-size": "2", "near": "rack"})
    await cluster.settle()
    assert "This cluster has no network level" in (cluster.note("p0", "reason") or "")
    controller.follow(read(b"network: {levels: [example.com/rack]}", source="x"))
    await cluster.settle()
    assert {cluster.gpus("p0")[0], cluster.gpus("p1")[0]} in ({"n0", "n2"}, {"n1", "n3"})
    assert cluster.note("p0", "gang-reach") == "rack"


async def test_the_nccl_that_jobs_run_is_taken_from_the_file_and_pods_that_wait_follow_it() -> None:
    # Of an HGX H100 five GPUs reach 400 GB/s up to 2.27, and 360 from 2.28 on.
    controller = Controller(Client(ServerConfig(url="http://127.0.0.1:1"), user_agent="test"))
    cluster = GpuCluster()
    controller.worker = cluster.worker
    cluster.node("a", None)
    cluster.machines["a"] = machines.dgx_h100()
    cluster.publish("a", machines.dgx_h100())
    cluster.pod("p", 5, wishes={"min-busbw": "390"})
    await cluster.settle()
    assert not cluster.claim("p")
    controller.follow(read(b"nccl: {version: '2.27'}", source="x"))
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"
    controller.follow(read(b"", source="x"))
    cluster.remove(PODS, "p", "default")
    cluster.pod("q", 5, wishes={"min-busbw": "390"})
    await cluster.settle()
    assert not cluster.claim("q")


async def test_a_machines_own_word_of_its_nccl_comes_before_the_files() -> None:
    cluster = GpuCluster()
    own = msgspec.structs.replace(machines.dgx_h100(), nccl_version="2.30")
    cluster.node("a", None)
    cluster.machines["a"] = own
    cluster.publish("a", own)
    cluster.worker.picture.nccl_changed("2.27")
    cluster.pod("p", 5, wishes={"min-busbw": "390"})
    await cluster.settle()
    assert not cluster.claim("p")
    cluster.worker.picture.nccl_changed("2.26")
    await cluster.settle()
    assert not cluster.claim("p")


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


async def test_a_bad_file_is_an_event_about_its_configmap(api: FakeApiServer) -> None:
    api.put(CONFIG_MAPS, MAP)
    async with Client(api.config, user_agent="test") as client:
        for replica in ("one", "two"):
            events = policies.PoliciesEvents(client, namespace="system", name="policies", instance=replica)
            await events.invalid("policies.yaml:3: weights: unknown")
    (event,) = api.all(EVENTS)
    assert event["metadata"]["namespace"] == "system"
    about = {"apiVersion": "v1", "kind": "ConfigMap", "name": "policies", "namespace": "system", "uid": "u-map"}
    assert event["involvedObject"] == about
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "PoliciesInvalid", 2)
    assert event["message"] == "policies.yaml:3: weights: unknown"


async def test_an_event_is_written_also_where_the_configmap_cannot_be_read(api: FakeApiServer) -> None:
    async with Client(api.config, user_agent="test") as client:
        await policies.PoliciesEvents(client, namespace="system", name="gone", instance="one").invalid("bad")
    (event,) = api.all(EVENTS)
    assert event["involvedObject"]["name"] == "gone"


CAPPED = "tenants: {a: {namespaces: [default], cap: [{gpus: 2}]}}"
DIVIDED = "tenants: {b: {namespaces: [other], partition: {nodes: [n1]}, exclusive: true}}"


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize(
    ("text", "placed", "why"),
    [(CAPPED, 2, "quota: tenant"), (DIVIDED, 8, "exclusive partition of another tenant"), ("", 16, "?")],
)
async def test_caps_and_partitions_are_in_force_once_they_are_stored(
    api: FakeApiServer, tmp_path: Path, text: str, placed: int, why: str
) -> None:
    """The controller places pods that were created right after the ConfigMap; the mounted file stays the old one."""
    cluster = GpuCluster()
    cluster.store = api.store
    for node in ("n1", "n2"):
        cluster.node(node)
    (file := tmp_path / "policies.yaml").write_text("{}")
    api.put(CONFIG_MAPS, MAP | {"data": {"policies.yaml": "{}"}})
    pods = [f"p{number:02}" for number in range(16)]
    async with Client(api.config, user_agent="test") as client, asyncio.TaskGroup() as tasks:
        controller = Controller(client)
        watched = policies.follow(
            controller.follow, client, file, namespace="system", configmap="policies", instance="me"
        )
        running = [tasks.create_task(work()) for work in (watched.run, controller.watch, controller.work)]
        await controller.synced()
        await watched.first_read()
        api.put(CONFIG_MAPS, MAP | {"data": {"policies.yaml": text}})
        for name in pods:
            cluster.pod(name, 1)
        async with asyncio.timeout(50):
            while not all(cluster.claim(name) or why in (cluster.note(name, "reason") or "-") for name in pods):
                cluster.schedule()
                await asyncio.sleep(0)
        for task in running:
            task.cancel()
    assert sum(cluster.claim(name) is not None for name in pods) == placed


@contextlib.asynccontextmanager
async def process(api: FakeApiServer, folder: Path, text: str) -> AsyncIterator[asyncio.Task[None]]:
    """A controller that runs while the block does, with this text in the mounted file."""
    kubeconfig, file = folder / "config", folder / "policies.yaml"
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": api.config.url}}],
        "users": [{"name": "u", "user": {}}],
    }
    kubeconfig.write_text(json.dumps(config))
    file.write_text(text)
    words = ["--namespace=system", "--identity=me", "--health-port=0", f"--kubeconfig={kubeconfig}"]
    often = ["--retry-period=0.2", "--renew-deadline=1", "--lease-duration=2"]
    options = parse([*words, *often, f"--policies={file}", "--policies-configmap=policies"])
    task = asyncio.create_task(serve(options))
    try:
        async with asyncio.timeout(50):
            yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.slow
@pytest.mark.real_time
async def test_the_process_follows_its_policies_and_tells_of_bad_ones(api: FakeApiServer, tmp_path: Path) -> None:
    api.put(CONFIG_MAPS, MAP | {"data": {"policies.yaml": "gpu: []"}})
    async with process(api, tmp_path, "gpus: []") as running:
        while not api.all(EVENTS):
            assert not running.done()
            await asyncio.sleep(0)
        api.put(CONFIG_MAPS, MAP | {"data": {"policies.yaml": "gpus: []"}})
        while len(api.all(EVENTS)) < 2:
            assert not running.done()
            await asyncio.sleep(0)
    invalid, valid = sorted(api.all(EVENTS), key=lambda event: event["reason"])
    assert "did you mean gpus?" in invalid["message"]
    assert (valid["type"], valid["reason"], valid["count"]) == ("Normal", "PoliciesValid", 1)
    digest = read(b"gpus: []", source="x").fingerprint
    assert valid["message"] == (
        f"The policies file of ConfigMap system/policies is valid again. It is in force, digest {digest}."
    )


@pytest.mark.slow
@pytest.mark.real_time
async def test_a_new_leader_reads_its_policies_first_though_its_watch_says_nothing(
    api: FakeApiServer, tmp_path: Path
) -> None:
    api.put(CONFIG_MAPS, MAP | {"data": {"policies.yaml": "{}"}})
    elected = asyncio.Event()
    api.fail(times=1, path="/leases", mode="hold", until=elected)
    async with process(api, tmp_path, "{}") as running:
        while not any(request.path.endswith("/leases/gpu-topology-controller") for request in api.requests):
            assert not running.done()
            await asyncio.sleep(0)
        silent = api.fail(path="/configmaps$", watch=True, mode="silence")
        api.disconnect()
        while not silent.hits:
            await asyncio.sleep(0)
        api.put(CONFIG_MAPS, MAP | {"data": {"policies.yaml": CAPPED}})
        elected.set()
        wanted = f"me={read(CAPPED.encode(), source='x').fingerprint}"
        while not any(wanted in (lease["metadata"].get("annotations") or {}).values() for lease in api.all(LEASES)):
            assert not running.done()
            await asyncio.sleep(0)
